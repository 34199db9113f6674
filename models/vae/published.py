"""Published autoencoders that several families have, as their config files say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLUX_1: Mapping[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "latent_channels": 16,
    "norm_num_groups": 32,
    "sample_size": 1024,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
"""Autoencoder of 16 channels, the first that had as many."""
