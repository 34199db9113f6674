"""LTX-2 in one `.safetensors` file: its transformer, over a folder in diffusers' layout.

Source: diffusers, single_file_utils.py, for the keys.
"""

from __future__ import annotations

from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming
from models.ltx.authors_names import AUTHORS_RENAMES
from models.ltx.key_mapping import TRANSFORMER

NAMINGS = (
    Naming(TRANSFORMER_PREFIXES, "audio_patchify_proj.weight", AUTHORS_RENAMES),
    Naming(TRANSFORMER_PREFIXES, "audio_proj_in.weight", TRANSFORMER),
)
"""Ways in which single files name the arrays."""
