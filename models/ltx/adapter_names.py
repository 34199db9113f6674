"""Layer names of LTX-2 in adapter files.

Source: diffusers, loaders/lora_conversion_utils.py, _convert_non_diffusers_ltx2_lora_to_diffusers.
"""

from __future__ import annotations

from models.adapters.layer_names import Spelling
from models.ltx.authors_names import LAYERS
from models.ltx.key_mapping import TRANSFORMER as RENAMES

TRANSFORMER = Spelling(RENAMES, fused=lambda network: LAYERS)

SPELLINGS = (TRANSFORMER,)
