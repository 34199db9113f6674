"""Names of FLUX.2's layers in files of adapters.

Source: diffusers, loaders/lora_conversion_utils.py, for the prefixes of its trainers.
"""

from __future__ import annotations

from models.adapters.layer_names import DOTTED, UNDERSCORED, Spelling
from models.flux2.authors_names import LAYERS, SWAPPED
from models.flux2.key_mapping import RENAMES

TRANSFORMER = Spelling(
    network="transformer",
    renames=RENAMES,
    dotted=(*DOTTED, ""),
    underscored=UNDERSCORED,
    fused=lambda network: LAYERS,
    swapped=SWAPPED,
    unread=("norm",),
)

SPELLINGS = (TRANSFORMER,)
