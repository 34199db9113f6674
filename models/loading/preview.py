"""Previews: a linear map from latents to colours, fitted to any autoencoder at load time.

Flat images of a colour each are encoded and their mean latents regressed on the colours, so that
it serves every checkpoint with no table of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, Float

from models.loading.abstract import abstract_module
from models.nn.layers.parameterised import linear
from models.vae.image import AutoencoderKL
from models.vae.normalisation import Normalisation
from models.vae.video import VideoAutoencoder
from models.weights.loader import put

MeanLatents = Callable[[Float[Array, " 3"]], Float[Array, " c"]]
"""A flat image's colour in [-1, 1] → its mean latents, as the denoising network has them."""


def fit_preview(mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
    """The map that fits best: from latents as the network has them to colours in [-1, 1]."""
    rows, place = fit(mean_latents)
    return as_preview(rows, place)


def fit(mean_latents: MeanLatents) -> tuple[Float[np.ndarray, "c+1 3"], Sharding]:
    """Return that map's kernel with its bias below, and its sharding."""
    levels = np.linspace(-1, 1, 3, dtype=np.float32)
    colours = np.array(list(itertools.product(levels, repeat=3)), np.float32)
    encoded = [mean_latents(colour) for colour in colours]
    place = everywhere(encoded[0].sharding)
    latents = np.stack([np.asarray(jax.device_put(one, place)) for one in encoded])
    design = np.concatenate([latents, np.ones((len(latents), 1), np.float32)], axis=1)
    return np.linalg.lstsq(design, colours, rcond=None)[0].astype(np.float32), place


def as_preview(rows: Float[np.ndarray, "c+1 3"], place: Sharding) -> nnx.Linear:
    """A map that `fit` has found, there."""
    preview = abstract_preview(len(rows) - 1)
    preview.kernel.set_value(put(rows[:-1], place))
    assert preview.bias is not None
    preview.bias.set_value(put(rows[-1], place))
    return preview


def everywhere(place: Sharding) -> Sharding:
    """Whole on each of the devices of a mesh; on one device, as it is there."""
    return NamedSharding(place.mesh, PartitionSpec()) if isinstance(place, NamedSharding) else place


def flat_image_encoder(vae: AutoencoderKL) -> tuple[MeanLatents, int]:
    """Return what `fit_preview` needs of an image autoencoder: latents shifted and scaled."""
    side = 4 * vae.config.downsampling
    graph, state = nnx.split(vae)

    @jax.jit
    def mean_latents(state: Any, colour: Float[Array, " 3"]) -> Float[Array, " c"]:
        vae = nnx.merge(graph, state)
        dtype = vae.encoder.conv_in.kernel.dtype
        flat = jnp.broadcast_to(colour.astype(dtype), (1, side, side, 3))
        mean = vae.encode(flat)[0].astype(jnp.float32).mean(axis=(0, 1, 2))
        return (mean - (vae.config.shift_factor or 0)) * vae.config.scaling_factor

    return partial(mean_latents, state), vae.config.latent_channels


def flat_frame_encoder(vae: VideoAutoencoder) -> tuple[MeanLatents, int]:
    """Return what `fit_preview` needs of a video autoencoder: normalised latents of one frame."""
    side = 4 * vae.config.downsampling
    normalisation = Normalisation.of(vae.config)
    graph, state = nnx.split(vae)

    @jax.jit
    def mean_latents(state: Any, colour: Float[Array, " 3"]) -> Float[Array, " c"]:
        frame = jnp.broadcast_to(colour, (1, 1, side, side, 3))
        mean, _ = nnx.merge(graph, state).encode(frame)
        return normalisation.apply(mean.mean(axis=(0, 1, 2, 3)))

    return partial(mean_latents, state), vae.config.z_dim


def abstract_preview(latent_channels: int) -> nnx.Linear:
    """Latents to colours, as a shape."""
    return abstract_module(linear, latent_channels, 3, (None, None))  # type: ignore[no-any-return]
