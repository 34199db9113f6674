"""Autoencoders in tiles compared with diffusers' tiles in float32, on random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from models.vae.config import Tiling
from models.vae.tiled import tiled
from models.vae.tiling import in_tiles
from tests import coarse
from tests.parity import test_vae as images
from tests.parity import test_video_vae as videos

MIN_DB = 60.0
"""PSNR of pixels as bytes and of latents, relative to their largest value. An untiled image has
less than 40 dB.
"""


def ran(vae: nnx.Module, tiling: Tiling | None, call: Callable[..., Any], x: np.ndarray) -> Any:
    return compiled(vae, tiling, call, x)(nnx.split(vae)[1], x)


def compiled(vae: nnx.Module, tiling: Tiling | None, call: Callable[..., Any], x: Any) -> Any:
    graph, state = nnx.split(vae)
    run = jax.jit(lambda state, x: call(tiled(nnx.merge(graph, state), tiling), x))
    return run.lower(state, x).compile(coarse.OPTIONS)


def encode(vae: Any, pixels: jax.Array) -> jax.Array:
    return jnp.concatenate(vae.encode(pixels), axis=-1)


def decode(vae: Any, latents: jax.Array) -> jax.Array:
    return vae.decode(latents)


def decibels(output: jax.Array, expected: torch.Tensor) -> float:
    """PSNR by the largest error, which is less than that by the mean."""
    reference = np.moveaxis(expected.numpy(), 1, -1)
    assert output.shape == reference.shape
    return float(20 * np.log10(np.abs(reference).max() / np.abs(output - reference).max()))


def channels_last(x: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x.numpy(), 1, -1))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Atelier's and diffusers' autoencoders in tiles of 8 latents that overlap by a quarter."""
    original = images.reference("sdxl")
    network = images.converted(original, tmp_path_factory.mktemp("image"))
    original.enable_tiling()
    original.tile_latent_min_size = 8
    original.tile_sample_min_size = 8 * network.config.downsampling
    return network, original


IMAGE = Tiling(32, 24)
SIDES = (14, 11)
"""Sides in latents: rows make two whole tiles and one within the last tile; columns end in a
partial tile."""


def test_decoded_images_match_diffusers(image: tuple[Any, Any]) -> None:
    network, original = image
    latents = torch.randn(1, network.config.latent_channels, *SIDES)
    with torch.no_grad():
        expected = original.decode(latents).sample
        original.disable_tiling()
        untiled = original.decode(latents).sample
        original.enable_tiling()
    output = ran(network, IMAGE, decode, channels_last(latents))
    assert decibels(output, expected) > MIN_DB
    assert decibels(output, untiled) < MIN_DB - 20, "tiling must change the image"


def test_encoded_images_match_diffusers(image: tuple[Any, Any]) -> None:
    network, original = image
    sides = [side * network.config.downsampling for side in SIDES]
    pixels = torch.rand(1, 3, *sides) * 2 - 1
    with torch.no_grad():
        posterior = original.encode(pixels).latent_dist
    expected = torch.cat([posterior.mean, posterior.logvar], dim=1)
    assert decibels(ran(network, IMAGE, encode, channels_last(pixels)), expected) > MIN_DB


CLIPS = {"wan-2.1": Tiling(16, 12), "time first": Tiling(24, 12)}
"""The second variant is made of patches, like Wan 2.2's."""


def clip_autoencoders(name: str, folder: Path) -> tuple[Any, Any, tuple[int, int]]:
    """Atelier's and diffusers' tiled autoencoders, and sides of latents that make two whole tiles
    and a partial one."""
    original = videos.random_model(videos.VARIANTS[name])
    network, tiling = videos.converted(original, folder), CLIPS[name]
    original.spatial_compression_ratio = network.config.downsampling
    original.enable_tiling(tiling.side, tiling.side, tiling.stride, tiling.stride)
    return network, original, (2 * tiling.stride // network.config.downsampling + 1, 1)


@pytest.mark.parametrize(("name", "frames"), [("wan-2.1", 2), ("time first", 1)])
def test_decoded_videos_match_diffusers(name: str, frames: int, tmp_path: Path) -> None:
    """Each tile has a separate cache."""
    network, original, sides = clip_autoencoders(name, tmp_path)
    latents = torch.randn(1, network.config.z_dim, frames, *sides)
    with torch.no_grad():
        expected = original.decode(latents).sample
    assert decibels(ran(network, CLIPS[name], decode, channels_last(latents)), expected) > MIN_DB


def test_encoded_videos_match_diffusers(tmp_path: Path) -> None:
    """A tile's side counts patches in this autoencoder."""
    network, original, (rows, columns) = clip_autoencoders("time first", tmp_path)
    config = network.config
    sides = (rows * config.downsampling * config.patch, columns * config.downsampling)
    pixels = torch.rand(1, config.in_channels // config.patch**2, 5, *sides) * 2 - 1
    with torch.no_grad():
        posterior = original.encode(pixels).latent_dist
    expected = torch.cat([posterior.mean, posterior.logvar], dim=1)
    output = ran(network, CLIPS["time first"], encode, channels_last(pixels))
    assert decibels(output, expected) > MIN_DB


def test_image_below_the_tile_size_is_not_tiled() -> None:
    image = jnp.ones((1, 8, 5, 4))
    assert in_tiles(lambda x: x, image, Tiling(8, 6), Tiling(8, 6)) is image


@pytest.mark.parametrize("call", [encode, decode], ids=lambda call: call.__name__)
def test_tiles_take_less_memory(call: Callable[..., Any], image: tuple[Any, Any]) -> None:
    """The input has eight times a tile's height."""
    network, _ = image
    scale, channels = (network.config.downsampling, 3) if call is encode else (1, 4)
    x = jax.ShapeDtypeStruct((1, 64 * scale, 6 * scale, channels), jnp.float32)
    untiled, tiled = (
        compiled(network, tiling, call, x).memory_analysis().temp_size_in_bytes
        for tiling in (None, IMAGE)
    )
    assert tiled < untiled / 4


def test_tiles_of_no_whole_latents_are_refused(image: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="multiples of 4"):
        tiled(image[0], Tiling(30, 24))
    with pytest.raises(ValueError, match="1 to 16 px, not 17"):
        Tiling(16, 17)
