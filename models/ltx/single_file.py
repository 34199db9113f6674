"""LTX-2 in one `.safetensors` file: its transformer, over a folder in diffusers' layout.

Source: diffusers, single_file_utils.py, for the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming, NetworkFile, parts_of
from models.ltx.authors_names import AUTHORS_RENAMES
from models.ltx.key_mapping import TRANSFORMER


def parts(file: Path) -> Mapping[str, NetworkFile]:
    """Return the networks of a file by their names in the pipeline.

    Raises:
        UnsupportedCheckpoint: there is no LTX-2 transformer in it.
        CheckpointError: pickled, damaged or not there.
    """
    found = parts_of(
        file,
        {
            "transformer": (
                Naming(TRANSFORMER_PREFIXES, "audio_patchify_proj.weight", AUTHORS_RENAMES),
                Naming(TRANSFORMER_PREFIXES, "audio_proj_in.weight", TRANSFORMER),
            )
        },
    )
    if "transformer" not in found:
        raise UnsupportedCheckpoint(
            f"{file}: no LTX-2 transformer in it; it would have audio_patchify_proj or "
            "audio_proj_in, behind model.diffusion_model or nothing"
        )
    return found
