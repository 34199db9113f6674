"""Autoencoder of frames with alpha compared with diffusers' AutoencoderKLQwenImage21, float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLQwenImage21 as Reference

from models.checkpoint import key_mapping
from models.loading.abstract import abstract_module
from models.vae.frame import RENAMES, FrameAutoencoder, FrameVaeConfig
from models.weights.loader import flat_parameters, load
from tests.parity.test_video_vae import (
    PSNR_DB,
    TOLERANCE,
    channels_last,
    placed,
    psnr,
    relative_gap,
    run,
)
from tests.parity.tiny_qwenimage21 import make_vae

VARIANTS: dict[str, dict[str, Any]] = {
    "with alpha": {},
    "odd": {
        "base_dim": 6,
        "decoder_base_dim": 10,
        "z_dim": 5,
        "dim_mult": [2, 1, 1],
        "num_res_blocks": 2,
        "temperal_downsample": [True, True],
        "in_channels": 3,
        "out_channels": 3,
    },
}


def converted(model: Reference, folder: Path) -> FrameAutoencoder:
    """Save diffusers' model to a file and load it with Atelier's loader."""
    model.save_pretrained(folder)
    config = FrameVaeConfig.from_dict(json.loads((folder / "config.json").read_text()))
    return load(abstract_module(FrameAutoencoder, config), folder, RENAMES, dtype=jnp.float32)


@pytest.mark.parametrize("name", VARIANTS)
def test_latents_and_pixels(name: str, tmp_path: Path, record_property: Any) -> None:
    original = make_vae(5, **VARIANTS[name])
    network = converted(original, tmp_path)
    config = network.config
    side = config.downsampling
    pixels = torch.rand(2, config.in_channels, 1, 3 * side, 2 * side) * 2 - 1
    latents = torch.randn(2, config.z_dim, 1, 5, 3)
    mean, log_variance = run(FrameAutoencoder.encode, network)(channels_last(pixels))
    decoded = run(FrameAutoencoder.decode, network)(channels_last(latents))
    with torch.no_grad():
        distribution = original.encode(pixels).latent_dist
        expected = original.decode(latents).sample
    gaps = [
        relative_gap(mean, distribution.mean),
        relative_gap(log_variance, distribution.logvar),
        relative_gap(decoded, expected),
    ]
    record_property("relative", max(gaps))
    print(" ".join(f"{gap:.1e}" for gap in gaps))
    assert max(gaps) < TOLERANCE
    assert psnr(decoded, expected) > PSNR_DB


@pytest.mark.parametrize("path", ["decoder.norm_out.gamma", "post_quant_conv.bias"])
def test_changed_array_breaks_parity(path: str, tmp_path: Path) -> None:
    original = make_vae(5)
    network = converted(original, tmp_path)
    leaf: Any = network
    for name in path.split("."):
        leaf = getattr(leaf, name)
    leaf[...] = leaf[...] * 1.05
    latents = torch.randn(1, network.config.z_dim, 1, 4, 3)
    decoded = run(FrameAutoencoder.decode, network)(channels_last(latents))
    with torch.no_grad():
        assert relative_gap(decoded, original.decode(latents).sample) > 100 * TOLERANCE


def test_published_size_has_every_tensor_in_its_place() -> None:
    """Abstract shapes of Qwen-Image 2.1's autoencoder, whose config is diffusers' default."""
    with torch.device("meta"):
        model = Reference()
    config = FrameVaeConfig.from_dict(dict(model.config))
    assert config == FrameVaeConfig()
    module = abstract_module(FrameAutoencoder, config)
    leaves = {path: leaf.shape for path, leaf in flat_parameters(module).items()}
    shapes = {}
    for key, tensor in model.state_dict().items():
        target = key_mapping.target(key, RENAMES)
        assert target is not None
        if target.path:
            shapes[target.path] = placed(tuple(tensor.shape), leaves[target.path])
    assert shapes == leaves
    assert sum(np.prod(shape) for shape in leaves.values()) > 0


@pytest.mark.parametrize(
    "values", [{"is_residual": False}, {"attn_scales": [1.0]}, {"patch_size": 2}], ids=str
)
def test_other_kinds_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="AutoencoderKLQwenImage21"):
        FrameVaeConfig.from_dict(values)
