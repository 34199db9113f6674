"""Wan's transformer in one `.safetensors` file; all else comes from a folder in diffusers' layout.

Animate's file has its encoder of faces, too.

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
    """Return where the transformer lies in a file.

    Args:
        count: of the base's transformers.

    Raises:
        UnsupportedCheckpoint: there is none of Wan's in it, or the base has two.
        CheckpointError: pickled, damaged or not there.
    """
    found = parts_of(file, {"transformer": NAMINGS})
    if "transformer" not in found:
        raise UnsupportedCheckpoint(
            f"{file}: no Wan transformer in it; it would have head.modulation, behind "
            "model.diffusion_model or nothing"
        )
    if count != 1:
        raise UnsupportedCheckpoint(
            f"{file}: one transformer, but its base has {count} experts; give a folder in "
            "diffusers' layout with both"
        )
    return found["transformer"]


def face_encoder(file: Path, config: AnimateConfig) -> NetworkFile:
    """Return where Animate's encoder of faces lies in a file.

    Raises:
        UnsupportedCheckpoint: there is none in it: it is not Animate's.
        CheckpointError: pickled, damaged or not there.
    """
    namings = (
        Naming(
            TRANSFORMER_PREFIXES,
            "motion_encoder.dec.direction.weight",
            authors_face_renames(len(config.sides) - 1),
        ),
        Naming(TRANSFORMER_PREFIXES, "motion_encoder.motion_synthesis_weight", FACE_RENAMES),
    )
    found = parts_of(file, {"face_encoder": namings})
    if "face_encoder" not in found:
        raise UnsupportedCheckpoint(
            f"{file}: no motion_encoder in it, but its base is Wan Animate; give a file of Animate"
        )
    return found["face_encoder"]
