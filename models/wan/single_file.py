"""Wan transformer in one `.safetensors` file; other parts are read from a diffusers folder.

Files of Animate also contain the face encoder.

Source: ComfyUI (comfy/supported_models.py, class WAN21_T2V) for the prefixes.
"""

from __future__ import annotations

from pathlib import Path

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.single_file import (
    TRANSFORMER_PREFIXES,
    Naming,
    NetworkFile,
    parts_of,
)
from models.wan.animate_config import AnimateConfig
from models.wan.authors_face_names import authors_face_renames
from models.wan.authors_names import AUTHORS_RENAMES
from models.wan.key_mapping import FACE_RENAMES, RENAMES

NAMINGS = (
    Naming(TRANSFORMER_PREFIXES, "head.modulation", AUTHORS_RENAMES),
    Naming(TRANSFORMER_PREFIXES, "condition_embedder.time_proj.weight", RENAMES),
)


def transformer(file: Path, count: int) -> NetworkFile:
    """Return the location of the transformer in a file.

    Args:
        count: number of transformers that the file should contain.

    Raises:
        UnsupportedCheckpoint: the file has no Wan transformer, or the base has two.
        CheckpointError: the file is pickled, damaged or missing.
    """
    parts = parts_of(file, {"transformer": NAMINGS})
    if "transformer" not in parts:
        raise UnsupportedCheckpoint(
            f"{file}: no Wan transformer in it; it must contain the key head.modulation, with the "
            "prefix model.diffusion_model or without a prefix"
        )
    if count != 1:
        raise UnsupportedCheckpoint(
            f"{file}: one transformer, but its base has {count} experts; give the low-noise "
            "expert's file as transformer_2 (models.*.transformer_2), or a folder in diffusers' "
            "layout with both"
        )
    return parts["transformer"]


def face_encoder(file: Path, config: AnimateConfig) -> NetworkFile:
    """Return the location of Animate's face encoder in a file.

    Raises:
        UnsupportedCheckpoint: the file has no face encoder, so it is not Animate.
        CheckpointError: the file is pickled, damaged or missing.
    """
    namings = (
        Naming(
            TRANSFORMER_PREFIXES,
            "motion_encoder.dec.direction.weight",
            authors_face_renames(len(config.sides) - 1),
        ),
        Naming(TRANSFORMER_PREFIXES, "motion_encoder.motion_synthesis_weight", FACE_RENAMES),
    )
    parts = parts_of(file, {"face_encoder": namings})
    if "face_encoder" not in parts:
        raise UnsupportedCheckpoint(
            f"{file}: no motion_encoder in it, but its base is Wan Animate; give a file of Animate"
        )
    return parts["face_encoder"]
