"""Video autoencoder configs: unsupported values are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from jaxtyping import config as type_checks

from models.vae.video_config import VideoVaeConfig


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable jaxtyping, so only Atelier's own checks can detect a wrong type."""
    monkeypatch.setattr(type_checks, "jaxtyping_disable", True)


WAN_2_2: dict[str, Any] = {
    "_class_name": "AutoencoderKLWan",
    "_diffusers_version": "0.35.0.dev0",
    "attn_scales": [],
    "base_dim": 160,
    "clip_output": False,
    "decoder_base_dim": 256,
    "dim_mult": [1, 2, 4, 4],
    "dropout": 0.0,
    "in_channels": 12,
    "is_residual": True,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
    "num_res_blocks": 2,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "scale_factor_temporal": 4,
    "temperal_downsample": [False, True, True],
    "z_dim": 48,
}


def test_a_real_config_is_read() -> None:
    config = VideoVaeConfig.from_dict(WAN_2_2)
    assert config.encoder_widths == (160, 160, 320, 640, 640)
    assert config.decoder_widths == (1024, 1024, 1024, 512, 256)
    assert config.downsamples == (False, True, True)
    assert config.upsamples == (True, True, False)
    assert (config.patch, config.scale_factor_spatial) == (2, 16)


def test_absent_key_has_the_diffusers_default() -> None:
    config = VideoVaeConfig.from_dict({})
    assert (config.base_dim, config.z_dim, config.patch) == (96, 16, 1)
    assert config.decoder_widths == (384, 384, 384, 192, 96)
    assert (config.latents_mean[0], config.latents_std[-1]) == (-0.7571, 1.916)
    assert not config.is_residual


def test_resampling_flags_after_the_last_halving_are_ignored() -> None:
    """The encoder reads the flags from the front, the decoder from the back."""
    config = VideoVaeConfig.from_dict({"dim_mult": [1, 2], "temperal_downsample": [False, True]})
    assert (config.downsamples, config.upsamples) == ((False,), (True,))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base_dim", 0),
        ("z_dim", 16),
        ("z_dim", "48"),
        ("num_res_blocks", 0),
        ("dim_mult", []),
        ("dim_mult", [1, 0.5, 4, 4]),
        ("dim_mult", [1, 3, 4, 4]),
        ("decoder_base_dim", 0),
        ("temperal_downsample", [True]),
        ("latents_mean", [0.0] * 16),
        ("latents_std", [0.0] * 48),
        ("in_channels", 3),
        ("out_channels", 6),
        ("patch_size", 0),
        ("scale_factor_spatial", None),
    ],
)
def test_unsupported_key_is_named(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        VideoVaeConfig.from_dict({**WAN_2_2, key: value})
