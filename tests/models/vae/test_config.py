"""VAE configs: unsupported values are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from models.vae.config import VaeConfig

FLUX: dict[str, Any] = {
    "_class_name": "AutoencoderKL",
    "act_fn": "silu",
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "latent_channels": 16,
    "latents_mean": None,
    "latents_std": None,
    "layers_per_block": 2,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_post_quant_conv": False,
    "use_quant_conv": False,
}


def test_a_real_config_is_read() -> None:
    config = VaeConfig.from_dict(FLUX)
    assert config.block_out_channels == (128, 256, 512, 512)
    assert config.downsampling == 8
    assert (config.scaling_factor, config.shift_factor) == (0.3611, 0.1159)
    assert not config.use_quant_conv


def test_absent_key_has_the_diffusers_default() -> None:
    config = VaeConfig.from_dict({"block_out_channels": [64]})
    assert config.use_quant_conv
    assert config.shift_factor is None
    assert config.norm_num_groups == 32


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("act_fn", "gelu"),
        ("down_block_types", ["AttnDownEncoderBlock2D"] * 4),
        ("up_block_types", ["UpDecoderBlock2D"] * 3),
        ("block_out_channels", [100, 256, 512, 512]),
        ("latents_mean", [0.0] * 15),
    ],
)
def test_unsupported_key_is_named(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        VaeConfig.from_dict({**FLUX, key: value})
