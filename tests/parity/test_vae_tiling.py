"""Autoencoders in tiles against diffusers' own tiles, in float32, on random weights."""

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

LEAST_DB = 60.0
"""Of pixels as bytes and of latents, against their largest; an image that was done as a whole has
less than 40."""


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


def decibels(found: jax.Array, expected: torch.Tensor) -> float:
    """The worst value's, which is less than the mean's."""
    theirs = np.moveaxis(expected.numpy(), 1, -1)
    assert found.shape == theirs.shape
    return float(20 * np.log10(np.abs(theirs).max() / np.abs(found - theirs).max()))


def channels_last(x: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x.numpy(), 1, -1))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """diffusers' in tiles of 8 latents, a quarter of which are the next one's, too; and ours."""
    theirs = images.reference("sdxl")
    ours = images.converted(theirs, tmp_path_factory.mktemp("image"))
    theirs.enable_tiling()
    theirs.tile_latent_min_size = 8
    theirs.tile_sample_min_size = 8 * ours.config.downsampling
    return ours, theirs


IMAGE = Tiling(32, 24)
SIDES = (14, 11)
"""Latents: two rows of whole tiles and one that lies within the last; columns with a rest."""


def test_decoded_pictures_are_those_of_diffusers(image: tuple[Any, Any]) -> None:
    ours, theirs = image
    latents = torch.randn(1, ours.config.latent_channels, *SIDES)
    with torch.no_grad():
        expected = theirs.decode(latents).sample
        theirs.disable_tiling()
        whole = theirs.decode(latents).sample
        theirs.enable_tiling()
    found = ran(ours, IMAGE, decode, channels_last(latents))
    assert decibels(found, expected) > LEAST_DB
    assert decibels(found, whole) < LEAST_DB - 20, "tiles that see all would show nothing"


def test_encoded_pictures_are_those_of_diffusers(image: tuple[Any, Any]) -> None:
    ours, theirs = image
    sides = [side * ours.config.downsampling for side in SIDES]
    pixels = torch.rand(1, 3, *sides) * 2 - 1
    with torch.no_grad():
        posterior = theirs.encode(pixels).latent_dist
    expected = torch.cat([posterior.mean, posterior.logvar], dim=1)
    assert decibels(ran(ours, IMAGE, encode, channels_last(pixels)), expected) > LEAST_DB


CLIPS = {"wan-2.1": Tiling(16, 12), "time first": Tiling(24, 12)}
"""The latter is made of patches, as 2.2's is."""


def clip_autoencoders(name: str, folder: Path) -> tuple[Any, Any, tuple[int, int]]:
    """Ours, diffusers' in tiles, and latents' sides: two whole tiles on top of a rest."""
    theirs = videos.reference(name)
    ours, tiling = videos.converted(theirs, folder), CLIPS[name]
    theirs.spatial_compression_ratio = ours.config.downsampling
    theirs.enable_tiling(tiling.side, tiling.side, tiling.stride, tiling.stride)
    return ours, theirs, (2 * tiling.stride // ours.config.downsampling + 1, 1)


@pytest.mark.parametrize(("name", "frames"), [("wan-2.1", 2), ("time first", 1)])
def test_decoded_clips_are_those_of_diffusers(name: str, frames: int, tmp_path: Path) -> None:
    """Each tile has a cache of its own."""
    ours, theirs, sides = clip_autoencoders(name, tmp_path)
    latents = torch.randn(1, ours.config.z_dim, frames, *sides)
    with torch.no_grad():
        expected = theirs.decode(latents).sample
    assert decibels(ran(ours, CLIPS[name], decode, channels_last(latents)), expected) > LEAST_DB


def test_encoded_clips_are_those_of_diffusers(tmp_path: Path) -> None:
    """A tile's side counts patches there."""
    ours, theirs, (rows, columns) = clip_autoencoders("time first", tmp_path)
    config = ours.config
    sides = (rows * config.downsampling * config.patch, columns * config.downsampling)
    pixels = torch.rand(1, config.in_channels // config.patch**2, 5, *sides) * 2 - 1
    with torch.no_grad():
        posterior = theirs.encode(pixels).latent_dist
    expected = torch.cat([posterior.mean, posterior.logvar], dim=1)
    found = ran(ours, CLIPS["time first"], encode, channels_last(pixels))
    assert decibels(found, expected) > LEAST_DB


def test_what_fits_a_tile_is_done_as_a_whole() -> None:
    picture = jnp.ones((1, 8, 5, 4))
    assert in_tiles(lambda x: x, picture, Tiling(8, 6), Tiling(8, 6)) is picture


@pytest.mark.parametrize("call", [encode, decode], ids=lambda call: call.__name__)
def test_tiles_take_less_memory(call: Callable[..., Any], image: tuple[Any, Any]) -> None:
    """Of eight times their height."""
    ours, _ = image
    scale, channels = (ours.config.downsampling, 3) if call is encode else (1, 4)
    x = jax.ShapeDtypeStruct((1, 64 * scale, 6 * scale, channels), jnp.float32)
    whole, parts = (
        compiled(ours, tiling, call, x).memory_analysis().temp_size_in_bytes
        for tiling in (None, IMAGE)
    )
    assert parts < whole / 4


def test_tiles_of_no_whole_latents_are_refused(image: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="multiples of 4"):
        tiled(image[0], Tiling(30, 24))
    with pytest.raises(ValueError, match="1 to 16 px, not 17"):
        Tiling(16, 17)
