"""Names of Qwen-Image's layers in files of adapters.

Source: diffusers, loaders/lora_conversion_utils.py, for the prefixes of its trainers.
"""

from __future__ import annotations

from models.adapters.layer_names import Spelling
from models.qwenimage.key_mapping import RENAMES

TRANSFORMER = Spelling(
    network="transformer",
    renames=RENAMES,
    dotted=(
        *("transformer.", "diffusion_model.", "model.diffusion_model.", "base_model.model."),
        *("diffusion_model.default.", "default.", ""),
    ),
    underscored=("lora_unet_", "lora_transformer_"),
)

SPELLINGS = (TRANSFORMER,)
