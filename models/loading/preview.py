"""Latent previews: a linear map from latents to colours, fitted when a model is loaded.

Uniform images of several colours are encoded, and the colours are regressed on the mean latents.
This works for any autoencoder without a table of constants.
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
"""Colour of a uniform image in [-1, 1] → its mean latents, scaled for the denoising network."""


def fit_preview(mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
    """Fit the map from the denoising network's latents to colours in [-1, 1]."""
    rows, sharding = fit(mean_latents)
    return as_preview(rows, sharding)


def fit(mean_latents: MeanLatents) -> tuple[Float[np.ndarray, "rows 3"], Sharding]:
    """Fit the preview map by least squares; return its kernel, bias as last row, and sharding."""
    levels = np.linspace(-1, 1, 3, dtype=np.float32)
    colours = np.array(list(itertools.product(levels, repeat=3)), np.float32)
    encoded = [mean_latents(colour) for colour in colours]
    sharding = everywhere(encoded[0].sharding)
    latents = np.stack([np.asarray(jax.device_put(latent, sharding)) for latent in encoded])
    design = np.concatenate([latents, np.ones((len(latents), 1), np.float32)], axis=1)
    return np.linalg.lstsq(design, colours, rcond=None)[0].astype(np.float32), sharding


def as_preview(rows: Float[np.ndarray, "rows 3"], sharding: Sharding) -> nnx.Linear:
    """Create a preview layer from the result of `fit`."""
    preview = abstract_preview(len(rows) - 1)
    preview.kernel.set_value(put(rows[:-1], sharding))
    assert preview.bias is not None
    preview.bias.set_value(put(rows[-1], sharding))
    return preview


def everywhere(sharding: Sharding) -> Sharding:
    """Return a fully replicated sharding on the same mesh; a single device stays as is."""
    return (
        NamedSharding(sharding.mesh, PartitionSpec())
        if isinstance(sharding, NamedSharding)
        else sharding
    )


def flat_image_encoder(vae: AutoencoderKL) -> tuple[MeanLatents, int]:
    """Return the mean latents function of an image autoencoder: shifted and scaled latents."""
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
    """Return the mean latents function of a video autoencoder: normalized latents of a frame.

    Its alpha, if it has one, is opaque.
    """
    side = 4 * vae.config.downsampling
    alpha = vae.config.in_channels // vae.config.patch**2 - 3
    normalisation = Normalisation.of(vae.config)
    graph, state = nnx.split(vae)

    @jax.jit
    def mean_latents(state: Any, colour: Float[Array, " 3"]) -> Float[Array, " c"]:
        frame = jnp.broadcast_to(jnp.append(colour, jnp.ones(alpha)), (1, 1, side, side, 3 + alpha))
        mean, _ = nnx.merge(graph, state).encode(frame)
        return normalisation.apply(mean.mean(axis=(0, 1, 2, 3)))

    return partial(mean_latents, state), vae.config.z_dim


def abstract_preview(latent_channels: int) -> nnx.Linear:
    """Return an abstract preview layer."""
    return abstract_module(linear, latent_channels, 3, (None, None))
