"""Autoencoders of Wan 2.1 and 2.2 under the authors' keys have every array of diffusers' layout."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKLWan

from models.checkpoint.key_mapping import target
from models.loading.abstract import abstract_module
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.vae.video_key_mapping import RENAMES
from models.vae.video_original_keys import AUTHORS_MARK, original_renames
from models.weights.loader import flat_parameters
from tests.models.vae.original_writer import authors_keys
from tests.parity.tiny import Config

WAN_22: Config = {
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "is_residual": True,
    "patch_size": 2,
    "in_channels": 12,
    "out_channels": 12,
    "temperal_downsample": (False, True, True),
    "latents_mean": (0.0,) * 48,
    "latents_std": (1.0,) * 48,
}
"""Sizes of Wan 2.2 TI2V 5B."""


@pytest.mark.parametrize("config", [{}, WAN_22], ids=["2.1", "2.2"])
def test_every_array_has_one_authors_key(config: Config) -> None:
    with torch.device("meta"):
        stored = AutoencoderKLWan(**config).state_dict()
    ours = VideoVaeConfig.from_dict(config)
    renames = original_renames(ours)
    named = authors_keys(stored, is_residual=ours.is_residual)
    assert AUTHORS_MARK in named
    for authors, diffusers in zip(named, stored, strict=True):
        paths = [target(diffusers, RENAMES), target(authors, renames)]
        assert len({goal and goal.path for goal in paths}) == 1, (authors, paths)
    leaves = flat_parameters(abstract_module(VideoAutoencoder, ours))
    assert {goal.path for key in named if (goal := target(key, renames))} == {*leaves}


def test_names_of_the_published_file() -> None:
    """Keys of `Wan2.2_VAE.pth`, by the modules of the authors' code."""
    renames = original_renames(VideoVaeConfig.from_dict(WAN_22))
    expected = {
        "conv1.weight": "quant_conv.kernel",
        "encoder.downsamples.0.downsamples.1.residual.6.bias": (
            "encoder.down_blocks.0.resnets.1.conv2.bias"
        ),
        "encoder.downsamples.1.downsamples.0.shortcut.weight": (
            "encoder.down_blocks.1.resnets.0.conv_shortcut.kernel"
        ),
        "encoder.downsamples.2.downsamples.2.time_conv.weight": (
            "encoder.down_blocks.2.resample.time_conv.kernel"
        ),
        "decoder.upsamples.0.upsamples.3.resample.1.weight": (
            "decoder.up_blocks.0.resample.resample.kernel"
        ),
        "decoder.upsamples.3.upsamples.2.residual.0.gamma": (
            "decoder.up_blocks.3.resnets.2.norm1.gamma"
        ),
    }
    goals = {key: target(key, renames) for key in expected}
    assert {key: goal and goal.path for key, goal in goals.items()} == expected
    assert target("decoder.upsamples.12.residual.0.gamma", renames) is None
