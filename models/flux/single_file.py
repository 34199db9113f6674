"""Flux in one `.safetensors` file: the transformer, and whatever else the file has.

What it lacks comes from a *base*: a folder in diffusers' layout, whose configs and tokenizers serve
in any case. Source: ComfyUI (comfy/supported_models.py, class Flux) for the prefixes.
"""

from __future__ import annotations

from models.checkpoint.single_file import TRANSFORMER_PREFIXES, FileFormat, Naming
from models.flux.authors_names import AUTHORS_RENAMES
from models.flux.key_mapping import RENAMES
from models.text import clip, t5
from models.vae.config import VaeConfig
from models.vae.original_keys import vae_renames


def format_of(vae: VaeConfig) -> FileFormat:
    """Return the format of files."""
    clip_prefix, t5_prefix = (f"text_encoders.{name}.transformer." for name in ("clip_l", "t5xxl"))
    clip_mark, t5_mark = (f"{name}.final_layer_norm.weight" for name in ("text_model", "encoder"))
    return FileFormat(
        "Flux",
        "double_blocks or transformer_blocks",
        {
            "transformer": (
                Naming(TRANSFORMER_PREFIXES, "img_in.weight", AUTHORS_RENAMES),
                Naming(TRANSFORMER_PREFIXES, "x_embedder.weight", RENAMES),
            ),
            "clip": (Naming((clip_prefix,), clip_mark, clip.UNPROJECTED_RENAMES),),
            "t5": (Naming((t5_prefix,), t5_mark, t5.RENAMES),),
            "vae": (Naming(("vae.",), "decoder.conv_in.weight", vae_renames(vae)),),
        },
    )
