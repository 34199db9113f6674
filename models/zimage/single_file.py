"""Z-Image in one `.safetensors` file: the transformer, and whatever else the file has.

What it lacks comes from a *base*: a folder in diffusers' layout, whose configs and tokenizer serve
in any case. Source: ComfyUI (comfy/supported_models.py, class ZImage) for the prefixes, diffusers'
single_file_utils.py for the keys that differ from its own.
"""

from __future__ import annotations

from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, FileFormat, Naming
from models.vae.config import VaeConfig
from models.vae.original_keys import vae_renames
from models.zimage.key_mapping import RENAMES, STACKS

LAYERS: Fused = {
    "x_embedder": ("all_x_embedder.2-1",),
    "final_layer.linear": ("all_final_layer.2-1.linear",),
    "final_layer.adaLN_modulation.1": ("all_final_layer.2-1.adaLN_modulation.1",),
    **{
        f"{blocks}.{{}}.attention.qkv": tuple(f"{blocks}.{{}}.attention.to_{one}" for one in "qkv")
        for blocks in STACKS
    },
    **{f"{blocks}.{{}}.attention.out": (f"{blocks}.{{}}.attention.to_out.0",) for blocks in STACKS},
}
"""ComfyUI's names of layers → diffusers'. All others have one name in both."""

COMFYS_RENAMES: Renames = (
    *authors_renames(LAYERS, RENAMES),
    *(
        (rf"{theirs}\.(\d+)\.attention\.{one}_norm\.weight", rf"{ours}.{one}_norm.scale[\1]")
        for theirs, ours in STACKS.items()
        for one in "qk"
    ),
    (r"norm_final\.weight", ""),
    *RENAMES,
)


def format_of(vae: VaeConfig, text_encoder: Renames) -> FileFormat:
    """Return the format of files.

    Args:
        text_encoder: names of its arrays.
    """
    mark, prefix = "layers.0.adaLN_modulation.0.weight", "text_encoders.qwen3_4b.transformer."
    return FileFormat(
        "Z-Image",
        "layers and noise_refiner",
        {
            "transformer": (Naming(TRANSFORMER_PREFIXES, mark, COMFYS_RENAMES),),
            "text_encoder": (Naming((prefix,), "model.embed_tokens.weight", text_encoder),),
            "vae": (Naming(("vae.",), "decoder.conv_in.weight", vae_renames(vae)),),
        },
    )
