"""Conversion between pixels and the UNet's latents: the autoencoder, its precision and scale."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.vae.config import Tiling, VaeConfig
from models.vae.tiled import tiled

Latents = Float[Array, "h w latent"]


class LatentSpace(NamedTuple):
    """Use of one checkpoint's autoencoder.

    `force_upcast` stands for weights that overflow in float16: whatever is encoded is encoded in
    float32 then, and what is decoded too where the weights are float16, as in diffusers.
    """

    config: VaeConfig
    dtype: np.dtype[Any]
    """Dtype of the weights."""
    tiling: Tiling | None = None
    """Tiling of images that do not fit the device as a whole; None: whole."""

    @property
    def encoding_dtype(self) -> np.dtype[Any]:
        """Data type in which images are encoded."""
        return np.dtype(np.float32) if self.config.force_upcast else self.dtype

    @property
    def decoding_dtype(self) -> np.dtype[Any]:
        """Data type in which latents are decoded."""
        return self.encoding_dtype if self.dtype == np.float16 else self.dtype

    def encode(
        self, graph: Any, weights: Any, pixels: Float[Array, "height width 3"], noise: Latents
    ) -> Latents:
        """A sample of the posterior, in float32 and as the encoder leaves it."""
        vae = self._vae(graph, weights, self.encoding_dtype)
        pixels = pixels.astype(self.dtype).astype(self.encoding_dtype)
        mean, log_variance = (x[0].astype(jnp.float32) for x in vae.encode(pixels[None]))
        return mean + jnp.exp(0.5 * log_variance) * noise

    def decode(self, graph: Any, weights: Any, latents: Latents) -> Float[Array, "height width 3"]:
        """The UNet's latents as pixels, about in [-1, 1]."""
        vae = self._vae(graph, weights, self.decoding_dtype)
        config = self.config
        if config.latents_mean is None or config.latents_std is None:
            latents = latents / config.scaling_factor
        else:
            std, mean = (
                np.asarray(x, np.float32) for x in (config.latents_std, config.latents_mean)
            )
            latents = latents * std / config.scaling_factor + mean
        return vae.decode(latents[None].astype(self.decoding_dtype))[0]

    def scaled(self, sample: Float[Array, "*batch latent"]) -> Float[Array, "*batch latent"]:
        """Scale what was encoded for inpainting: diffusers leaves the statistics out there."""
        return self.config.scaling_factor * sample

    def normalized(self, sample: Float[Array, "*batch latent"]) -> Float[Array, "*batch latent"]:
        """Normalise as image to image does: by the channels' statistics, if the config has any."""
        config = self.config
        if config.latents_mean is None or config.latents_std is None:
            return self.scaled(sample)
        std, mean = (np.asarray(x, np.float32) for x in (config.latents_std, config.latents_mean))
        return self.scaled(sample - mean) / std

    def _vae(self, graph: Any, weights: Any, dtype: np.dtype[Any]) -> Any:
        """The autoencoder with its weights in that precision, for the time of one call."""
        vae = nnx.merge(graph, jax.tree.map(lambda leaf: leaf.astype(dtype), weights))
        return tiled(vae, self.tiling)
