"""Qwen-Image in one `.safetensors` file: the transformer, and whatever else the file has.

What it lacks comes from a *base*: a folder in diffusers' layout, whose configs and tokenizer serve
in any case. Source: ComfyUI (comfy/supported_models.py, class QwenImage) for the prefixes; the
transformer has diffusers' own keys there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.key_mapping import Renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming, NetworkFile, parts_of
from models.qwenimage.key_mapping import RENAMES
from models.vae.video_config import VideoVaeConfig
from models.vae.video_original_keys import original_renames
from models.vision.qwen25 import RENAMES as VISION_RENAMES


def parts(file: Path, vae: VideoVaeConfig, text_encoder: Renames) -> Mapping[str, NetworkFile]:
    """Return the networks of a file by their names in the pipeline.

    Args:
        text_encoder: names of its arrays.

    Raises:
        UnsupportedCheckpoint: there is no Qwen-Image transformer in it.
        CheckpointError: pickled, damaged or not there.
    """
    mark, prefix = "transformer_blocks.0.attn.norm_added_q.weight", "text_encoders.qwen25_7b."
    found = parts_of(
        file,
        {
            "transformer": (Naming(TRANSFORMER_PREFIXES, mark, RENAMES),),
            "text_encoder": (
                Naming((f"{prefix}transformer.",), "model.embed_tokens.weight", text_encoder),
            ),
            "vision": (
                Naming((f"{prefix}transformer.",), "visual.merger.ln_q.weight", VISION_RENAMES),
            ),
            "vae": (Naming(("vae.",), "decoder.middle.0.residual.0.gamma", original_renames(vae)),),
        },
    )
    if "transformer" not in found:
        raise UnsupportedCheckpoint(
            f"{file}: no Qwen-Image transformer in it; its keys would begin with "
            "transformer_blocks and txt_norm, behind model.diffusion_model or nothing"
        )
    return found
