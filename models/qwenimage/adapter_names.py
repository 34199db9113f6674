"""Names of Qwen-Image's layers in files of adapters.

Source: diffusers, loaders/lora_conversion_utils.py, for the prefixes of its trainers.
"""

from __future__ import annotations

from models.adapters.layer_names import DOTTED, OF_PEFT, UNDERSCORED, Spelling
from models.qwenimage.key_mapping import RENAMES

TRANSFORMER = Spelling(
    network="transformer",
    renames=RENAMES,
    dotted=(*DOTTED, *OF_PEFT, ""),
    underscored=UNDERSCORED,
)

SPELLINGS = (TRANSFORMER,)
