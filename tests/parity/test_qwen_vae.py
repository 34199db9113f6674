"""Video autoencoder compared with diffusers' AutoencoderKLQwenImage in float32, on single frames.

Qwen-Image uses Wan 2.1's autoencoder for single frames.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLQwenImage as Reference

from models.checkpoint import key_mapping
from models.loading.abstract import abstract_module
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.vae.video_key_mapping import RENAMES
from models.weights.loader import flat_parameters
from tests.parity.test_video_vae import (
    PSNR_DB,
    TOLERANCE,
    channels_last,
    converted,
    placed,
    psnr,
    random_model,
    relative_gap,
    run,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "three levels": {
        "base_dim": 6,
        "z_dim": 5,
        "dim_mult": [1, 2, 3],
        "num_res_blocks": 2,
        "temperal_downsample": [True, True],
    },
    "odd, with four colours": {
        "base_dim": 10,
        "z_dim": 3,
        "dim_mult": [3, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [False],
        "input_channels": 4,
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_latents_and_pixels_of_one_frame(name: str, tmp_path: Path, record_property: Any) -> None:
    original = random_model(VARIANTS[name], Reference)
    network = converted(original, tmp_path)
    config = network.config
    side = config.downsampling
    pixels = torch.rand(2, config.in_channels, 1, 3 * side + 1, 2 * side) * 2 - 1
    latents = torch.randn(2, config.z_dim, 1, 5, 3)
    mean, log_variance = run(VideoAutoencoder.encode, network)(channels_last(pixels))
    decoded = run(VideoAutoencoder.decode, network)(channels_last(latents))
    with torch.no_grad():
        distribution = original.encode(pixels).latent_dist
        expected = original.decode(latents).sample
    assert relative_gap(mean, distribution.mean) < TOLERANCE
    assert relative_gap(log_variance, distribution.logvar) < TOLERANCE
    assert relative_gap(decoded, expected) < TOLERANCE
    record_property("dB", psnr(decoded, expected))
    assert psnr(decoded, expected) > PSNR_DB


@pytest.mark.parametrize("path", ["decoder.norm_out.gamma", "post_quant_conv.bias"])
def test_changed_array_breaks_parity(path: str, tmp_path: Path) -> None:
    original = random_model(VARIANTS["odd, with four colours"], Reference)
    network = converted(original, tmp_path)
    leaf: Any = network
    for name in path.split("."):
        leaf = getattr(leaf, name)
    leaf[...] = leaf[...] * 1.05
    latents = torch.randn(1, network.config.z_dim, 1, 4, 3)
    decoded = run(VideoAutoencoder.decode, network)(channels_last(latents))
    with torch.no_grad():
        assert relative_gap(decoded, original.decode(latents).sample) > 100 * TOLERANCE


def test_published_size_has_every_tensor_in_its_place() -> None:
    """Qwen-Image's abstract shapes, which are diffusers' defaults."""
    with torch.device("meta"):
        model = Reference()
    module = abstract_module(VideoAutoencoder, VideoVaeConfig.from_dict(dict(model.config)))
    leaves = {path: leaf.shape for path, leaf in flat_parameters(module).items()}
    shapes = {}
    for key, tensor in model.state_dict().items():
        target = key_mapping.target(key, RENAMES)
        assert target is not None
        shapes[target.path] = placed(tuple(tensor.shape), leaves[target.path])
    assert shapes == leaves
    assert sum(np.prod(shape) for shape in leaves.values()) == 126_892_531
