"""Qwen-Image in one `.safetensors` file: the transformer, and whatever else the file has.

What it lacks comes from a *base*: a folder in diffusers' layout, whose configs and tokenizer serve
in any case. Source: ComfyUI (comfy/supported_models.py, class QwenImage) for the prefixes; the
transformer has diffusers' own keys there.
"""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, FileFormat, Naming
from models.qwenimage.key_mapping import RENAMES
from models.vae.video_config import VideoVaeConfig
from models.vae.video_original_keys import original_renames
from models.vision.qwen25 import RENAMES as VISION_RENAMES


def format_of(vae: VideoVaeConfig, text_encoder: Renames) -> FileFormat:
    """Return the format of files.

    Args:
        text_encoder: names of its arrays.
    """
    mark = "transformer_blocks.0.attn.norm_added_q.weight"
    prefixes = ("text_encoders.qwen25_7b.transformer.",)
    return FileFormat(
        "Qwen-Image",
        "transformer_blocks and txt_norm",
        {
            "transformer": (Naming(TRANSFORMER_PREFIXES, mark, RENAMES),),
            "text_encoder": (Naming(prefixes, "model.embed_tokens.weight", text_encoder),),
            "vision": (Naming(prefixes, "visual.merger.ln_q.weight", VISION_RENAMES),),
            "vae": (Naming(("vae.",), "decoder.middle.0.residual.0.gamma", original_renames(vae)),),
        },
    )
