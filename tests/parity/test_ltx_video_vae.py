"""LTX-2's video autoencoder compared with diffusers' in float32, on random weights and odd
sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.ltx.key_mapping import VIDEO_VAE
from models.ltx.video_vae import LTX2VideoAutoencoder
from models.ltx.video_vae_config import LTX2VideoVaeConfig
from models.vae.config import Tiling
from models.weights.loader import flat_parameters, load
from tests.parity.distances import relative
from tests.parity.tiny import Config
from tests.parity.tiny_ltx import VIDEO_VAE as LIKE_2
from tests.parity.tiny_ltx import VIDEO_VAE_ODD as ODD
from tests.parity.tiny_ltx import video_vae

RELATIVE = 1e-5
"""Tolerance of latents and of pixels, relative by norm."""
PSNR_DB = 60.0
VARIANTS = {"as published": LIKE_2, "odd": ODD}

encode = nnx.jit(lambda model, pixels: model.encode(pixels))
decode = nnx.jit(lambda model, latents: model.decode(latents))


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def last(x: torch.Tensor) -> np.ndarray:
    """Move channels last."""
    return x.movedim(1, -1).numpy()


def first(x: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.ascontiguousarray(np.moveaxis(x, -1, 1)))


def run_atelier(reference: Any, folder: Path) -> LTX2VideoAutoencoder:
    reference.save_pretrained(folder)
    config = LTX2VideoVaeConfig.from_dict(read_config(folder.parent, folder.name))
    return load(abstract_module(LTX2VideoAutoencoder, config), folder, VIDEO_VAE, dtype=jnp.float32)


def decoded(reference: Any, latents: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return last(reference.decode(first(latents)).sample)


def latents_of(config: Config) -> np.ndarray:
    return drawn(2, 3, 4, 3, config["latent_channels"])


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_pixels(config: Config, tmp_path: Path, record_property: Any) -> None:
    reference = video_vae(3, **config)
    latents = latents_of(config)
    expected = decoded(reference, latents)
    pixels = np.asarray(decode(run_atelier(reference, tmp_path), jnp.asarray(latents)))
    gap = relative(pixels, expected)
    shown = [np.clip(values, -1, 1) for values in (pixels, expected)]
    db = 10 * np.log10(4 / np.mean((shown[0] - shown[1]) ** 2))
    record_property("relative", gap)
    print(f"{gap:.1e} {db:.0f} dB")
    assert gap < RELATIVE and db >= PSNR_DB
    levels = [np.rint((values + 1) * 127.5) for values in shown]
    assert np.abs(levels[0] - levels[1]).max() <= 2
    assert (np.abs(expected) < 1).mean() > 0.5  # clipped pixels would hide errors


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_latents(config: Config, tmp_path: Path, record_property: Any) -> None:
    reference = video_vae(3, **config)
    pixels = np.tanh(drawn(2, config["frames"], *config["sides"], 3))
    with torch.no_grad():
        expected = last(reference.encode(first(pixels)).latent_dist.mode())
    gap = relative(encode(run_atelier(reference, tmp_path), jnp.asarray(pixels)), expected)
    record_property("relative", gap)
    print(f"{gap:.1e}")
    assert gap < RELATIVE


def test_pixels_in_tiles(tmp_path: Path) -> None:
    config = {**LIKE_2, "spatial_compression_ratio": 8, "temporal_compression_ratio": 4}
    reference = video_vae(3, **config)
    latents = drawn(1, 2, 8, 5, config["latent_channels"])
    untiled = decoded(reference, latents)
    sides = ("height", "width")
    reference.enable_tiling(
        **{f"tile_sample_min_{side}": 32 for side in sides},
        **{f"tile_sample_stride_{side}": 24 for side in sides},
    )
    expected = decoded(reference, latents)
    model = run_atelier(reference, tmp_path)
    tiled = nnx.jit(lambda model, x: model.decode_in_tiles(x, Tiling(32, 24)))(model, latents)
    assert relative(tiled, expected) < RELATIVE < relative(untiled, expected) / 100


def test_statistics_of_latents(tmp_path: Path) -> None:
    reference = video_vae(3, **LIKE_2)
    model, latents = run_atelier(reference, tmp_path), jnp.asarray(latents_of(LIKE_2))
    mean, std = (getattr(reference, f"latents_{name}").numpy() for name in ("mean", "std"))
    assert relative(model.denormalised(latents), np.asarray(latents) * std + mean) < RELATIVE
    restored = model.normalised(model.denormalised(latents))
    assert relative(restored, np.asarray(latents)) < RELATIVE


BITES = {
    "convolution of a block": "up.0.blocks.0.second.conv.kernel",
    "convolution of an upsampling": "up.1.up.conv.conv.kernel",
    "bias in the middle": "decoder_mid.0.first.conv.bias",
    "last convolution": "decoder_out.conv.kernel",
}


@pytest.mark.parametrize("path", BITES.values(), ids=BITES)
def test_changed_array_breaks_parity(path: str, tmp_path: Path) -> None:
    reference = video_vae(3, **LIKE_2)
    damaged, latents = run_atelier(reference, tmp_path), latents_of(LIKE_2)
    leaf = flat_parameters(damaged)[path]
    leaf[...] = leaf[...] * 1.03
    gap = relative(decode(damaged, jnp.asarray(latents)), decoded(reference, latents))
    assert gap > 10 * RELATIVE


@pytest.mark.parametrize(
    "change",
    [
        {"decoder_causal": True},
        {"decoder_spatial_padding_mode": "zeros"},
        {"upsample_residual": [False, True]},
    ],
    ids=str,
)
def test_wrong_config_breaks_parity(change: Config, tmp_path: Path) -> None:
    reference = video_vae(3, **LIKE_2)
    latents = latents_of(LIKE_2)
    expected = decoded(reference, latents)
    reference.register_to_config(**change)
    gap = relative(decode(run_atelier(reference, tmp_path), jnp.asarray(latents)), expected)
    assert gap > 1000 * RELATIVE


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"timestep_conditioning": True}, "timestep_conditioning"),
        ({"decoder_inject_noise": [False, True, False]}, "decoder_inject_noise"),
        ({"patch_size_t": 2}, "patch_size_t"),
        ({"decoder_spatial_padding_mode": "circular"}, "decoder_spatial_padding_mode"),
        ({"downsample_type": ["conv", "spatial"]}, "downsample_type"),
        ({"upsample_factor": [3, 2]}, "upsample_factor"),
        ({"spatio_temporal_scaling": False}, "keep its width"),
    ],
    ids=str,
)
def test_configs_that_are_not_served(values: Config, named: str) -> None:
    config = {k: v for k, v in LIKE_2.items() if k not in ("frames", "sides")}
    with pytest.raises(ValueError, match=named):
        LTX2VideoVaeConfig.from_dict({**config, **values})
