"""Layer names of SDXL in adapter files.

Source: Stability AI, generative-models (sgm/modules/diffusionmodules/openaimodel.py) for the
original names of the UNet's layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from models.adapters.clip_names import clip_spelling
from models.adapters.layer_names import DOTTED, UNDERSCORED, Spelling
from models.checkpoint.authors_names import Fused
from models.sdxl.key_mapping import RENAMES
from models.sdxl.network import UNet
from models.sdxl.single_file_keys import BlockNames, block_names

_UNIQUE_LAYERS = {
    "time_embed.0": ("time_embedding.linear_1",),
    "time_embed.2": ("time_embedding.linear_2",),
    "time_embed.cond_proj": ("time_embedding.cond_proj",),
    "label_emb.0.0": ("add_embedding.linear_1",),
    "label_emb.0.2": ("add_embedding.linear_2",),
    "input_blocks.0.0": ("conv_in",),
    "out.2": ("conv_out",),
}
_OF_RESNET = {
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
_OF_TRANSFORMER = (
    *("proj_in", "proj_out"),
    *(
        f"transformer_blocks.{{}}.{layer}"
        for layer in (
            *(
                f"attn{n}.{projection}"
                for n in (1, 2)
                for projection in ("to_q", "to_k", "to_v", "to_out.0")
            ),
            *("ff.net.0.proj", "ff.net.2"),
        )
    ),
)
"""Layers of a transformer, named alike in every checkpoint."""


def _authors_names(network: UNet) -> Fused:
    places = block_names(network.config)
    return _UNIQUE_LAYERS | {
        source: (target,) for place in places for source, target in _layers(place)
    }


def _layers(place: BlockNames) -> Iterator[tuple[str, str]]:
    """Yield the original and diffusers' names of the layers of one block of the UNet."""
    if place.kind == "resnet":
        for source, target in _OF_RESNET.items():
            yield f"{place.key}.{source}", f"{place.path}.{target}"
    elif place.kind == "transformer":
        for layer in _OF_TRANSFORMER:
            yield f"{place.key}.{layer}", f"{place.path}.{layer}"
    else:
        yield place.key, f"{place.path}rs.0.conv"


UNET = Spelling(
    network="unet",
    renames=RENAMES,
    dotted=(*DOTTED, ""),
    underscored=UNDERSCORED,
    fused=_authors_names,
    synonyms=(("to_out.0", "to_out"),),
)


SPELLINGS = (
    UNET,
    clip_spelling("clip", "text_encoder", ("lora_te1", "lora_te"), "clip_l"),
    clip_spelling("clip_2", "text_encoder_2", ("lora_te2",), "clip_g"),
)
