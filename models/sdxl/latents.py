"""Conversion between pixels and the UNet's latents: autoencoder, precision and scaling."""

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
    """Autoencoder of one checkpoint, with its precision and scaling.

    `force_upcast` marks weights that overflow in float16. Encoding then runs in float32, and so
    does decoding if the weights are float16, as in diffusers.
    """

    config: VaeConfig
    dtype: np.dtype[Any]
    """Dtype of the autoencoder's weights."""
    tiling: Tiling | None = None
    """Tiling of images too large for the device; None disables tiling."""

    @property
    def encoding_dtype(self) -> np.dtype[Any]:
        """Dtype in which images are encoded."""
        return np.dtype(np.float32) if self.config.force_upcast else self.dtype

    @property
    def decoding_dtype(self) -> np.dtype[Any]:
        """Dtype in which latents are decoded."""
        return self.encoding_dtype if self.dtype == np.float16 else self.dtype

    def encode(
        self, graph: Any, weights: Any, pixels: Float[Array, "height width 3"], noise: Latents
    ) -> Latents:
        """Encode pixels to a sample of the VAE's posterior, in float32 and unscaled."""
        vae = self._vae(graph, weights, self.encoding_dtype)
        pixels = pixels.astype(self.dtype).astype(self.encoding_dtype)
        mean, log_variance = (x[0].astype(jnp.float32) for x in vae.encode(pixels[None]))
        sample: Latents = mean + jnp.exp(0.5 * log_variance) * noise
        return sample

    def decode(self, graph: Any, weights: Any, latents: Latents) -> Float[Array, "height width 3"]:
        """Decode the UNet's latents to pixels, approximately in [-1, 1]."""
        vae = self._vae(graph, weights, self.decoding_dtype)
        config = self.config
        if config.latents_mean is None or config.latents_std is None:
            latents = latents / config.scaling_factor
        else:
            std, mean = (
                np.asarray(x, np.float32) for x in (config.latents_std, config.latents_mean)
            )
            latents = latents * std / config.scaling_factor + mean
        pixels: Array = vae.decode(latents[None].astype(self.decoding_dtype))[0]
        return pixels

    def scale(self, sample: Float[Array, "*batch latent"]) -> Float[Array, "*batch latent"]:
        """Scale the VAE's sample for inpainting; diffusers ignores channel statistics there."""
        return self.config.scaling_factor * sample

    def normalize(self, sample: Float[Array, "*batch latent"]) -> Float[Array, "*batch latent"]:
        """Scale the VAE's sample for image-to-image, with the channel statistics if configured."""
        config = self.config
        if config.latents_mean is None or config.latents_std is None:
            return self.scale(sample)
        std, mean = (np.asarray(x, np.float32) for x in (config.latents_std, config.latents_mean))
        return self.scale(sample - mean) / std

    def _vae(self, graph: Any, weights: Any, dtype: np.dtype[Any]) -> Any:
        """Return the autoencoder with its weights cast to this dtype for one call."""
        vae = nnx.merge(graph, jax.tree.map(lambda leaf: leaf.astype(dtype), weights))
        return tiled(vae, self.tiling)
