"""Flux in one `.safetensors` file: the transformer, and whatever else the file has.

What it lacks comes from a *base*: a folder in diffusers' layout, whose configs and tokenizers serve
in any case. Source: ComfyUI (comfy/supported_models.py, class Flux) for the prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.single_file import (
    TRANSFORMER_PREFIXES,
    Naming,
    NetworkFile,
    parts_of,
)
from models.flux.authors_names import AUTHORS_RENAMES
from models.flux.key_mapping import RENAMES
from models.text import clip, t5
from models.vae.config import VaeConfig
from models.vae.original_keys import vae_renames


def parts(file: Path, vae: VaeConfig) -> Mapping[str, NetworkFile]:
    """Return the networks of a file by their names in the pipeline.

    Raises:
        UnsupportedCheckpoint: there is no Flux transformer in it.
        CheckpointError: pickled, damaged or not there.
    """
    found = parts_of(
        file,
        {
            "transformer": (
                Naming(TRANSFORMER_PREFIXES, "img_in.weight", AUTHORS_RENAMES),
                Naming(TRANSFORMER_PREFIXES, "x_embedder.weight", RENAMES),
            ),
            "clip": (
                Naming(
                    ("text_encoders.clip_l.transformer.",),
                    "text_model.final_layer_norm.weight",
                    clip.UNPROJECTED_RENAMES,
                ),
            ),
            "t5": (
                Naming(
                    ("text_encoders.t5xxl.transformer.",),
                    "encoder.final_layer_norm.weight",
                    t5.RENAMES,
                ),
            ),
            "vae": (Naming(("vae.",), "decoder.conv_in.weight", vae_renames(vae)),),
        },
    )
    if "transformer" not in found:
        raise UnsupportedCheckpoint(
            f"{file}: no Flux transformer in it; its keys would begin with double_blocks or "
            "transformer_blocks, behind model.diffusion_model or nothing"
        )
    return found
