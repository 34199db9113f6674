"""Transformer configs of Flux: unsupported values are refused by name."""

from __future__ import annotations

import pytest

from models.flux.config import FluxConfig


def test_defaults_are_flux_dev_without_guidance() -> None:
    config = FluxConfig.from_dict({"_class_name": "FluxTransformer2DModel"})
    assert (config.width, config.latent_channels) == (3072, 16)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"patch_size": 2}, "patch_size 2"),
        ({"in_channels": 30}, "in_channels 30"),
        ({"in_channels": 384, "out_channels": 62}, "out_channels 62"),
        ({"out_channels": 0}, "out_channels 0"),
        ({"axes_dims_rope": [16, 56, 58]}, "attention_head_dim 128"),
        ({"axes_dims_rope": [64, 64]}, "3 even sizes"),
        ({"axes_dims_rope": [15, 57, 56]}, "even"),
        ({"num_layers": -1}, "num_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
    ],
)
def test_unsupported_config_is_named(wrong: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        FluxConfig.from_dict(wrong)
