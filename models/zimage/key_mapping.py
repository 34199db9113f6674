"""Names of the Z-Image transformer's arrays → paths in `ZImageTransformer`.

Source: diffusers' ZImageTransformer2DModel; its single_file_utils.py for those of ComfyUI's keys
that differ; its loaders/lora_conversion_utils.py for the prefixes of adapters.
"""

from __future__ import annotations

from models.adapters.layer_names import DOTTED, OF_PEFT, Spelling
from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming

_STACKS = {"noise_refiner": "image_blocks", "context_refiner": "text_blocks", "layers": "blocks"}
"""Blocks of a checkpoint → ours."""
_LAYERS = {
    **{rf"attention\.to_{one}": f"heads.{one}" for one in "qkv"},
    r"attention\.to_out\.0": "out",
    r"feed_forward\.w1": "feed_forward.gate",
    r"feed_forward\.w2": "feed_forward.down",
    r"feed_forward\.w3": "feed_forward.up",
    r"adaLN_modulation\.0": "modulation",
}
_NORMS = {
    **{rf"attention\.norm_{one}": f"heads.{one}_norm" for one in "qk"},
    "attention_norm1": "attention_in",
    "attention_norm2": "attention_out",
    "ffn_norm1": "feed_forward_in",
    "ffn_norm2": "feed_forward_out",
}

RENAMES: Renames = (
    *layer_renames(
        {
            r"all_x_embedder\.2-1": "latents_in",
            r"all_final_layer\.2-1\.linear": "latents_out",
            r"all_final_layer\.2-1\.adaLN_modulation\.1": "out_modulation",
            r"t_embedder\.mlp\.0": "time_in.first",
            r"t_embedder\.mlp\.2": "time_in.second",
            r"cap_embedder\.1": "text_in",
        },
        {r"cap_embedder\.0": "text_norm"},
    ),
    ("x_pad_token", "image_filling"),
    ("cap_pad_token", "text_filling"),
    *(rule for stack in _STACKS.items() for rule in layer_renames(_LAYERS, _NORMS, stack)),
)
"""Keys of a checkpoint in diffusers' layout."""

_ATTENTIONS = tuple(f"{blocks}.{{}}.attention" for blocks in _STACKS)
LAYERS: Fused = {
    "x_embedder": ("all_x_embedder.2-1",),
    "final_layer.linear": ("all_final_layer.2-1.linear",),
    "final_layer.adaLN_modulation.1": ("all_final_layer.2-1.adaLN_modulation.1",),
    **{f"{one}.qkv": tuple(f"{one}.to_{part}" for part in "qkv") for one in _ATTENTIONS},
    **{f"{one}.out": (f"{one}.to_out.0",) for one in _ATTENTIONS},
}
"""ComfyUI's names of layers → diffusers'. All others have one name in both."""

_COMFYS_NORMS = {rf"attention\.{one}_norm": f"heads.{one}_norm" for one in "qk"}
COMFYS_RENAMES: Renames = (
    *authors_renames(LAYERS, RENAMES),
    *(rule for stack in _STACKS.items() for rule in layer_renames({}, _COMFYS_NORMS, stack)),
    (r"norm_final\.weight", ""),
    *RENAMES,
)
NAMINGS = (Naming(TRANSFORMER_PREFIXES, "layers.0.adaLN_modulation.0.weight", COMFYS_RENAMES),)
"""Way in which single files name the arrays."""

SPELLINGS = (Spelling(RENAMES, dotted=(*DOTTED, *OF_PEFT, ""), fused=lambda network: LAYERS),)
"""Names in files of adapters."""
