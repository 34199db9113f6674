"""LTX-2 transformer in one `.safetensors` file; other parts are read from a diffusers folder.

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
"""Array naming schemes of LTX-2 in single files."""
