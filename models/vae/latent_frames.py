"""Image pipelines whose packed latents are one frame of a video autoencoder."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.interface.denoising_pipeline import Networks
from models.interface.images import to_uint8
from models.interface.pipeline import PyTree
from models.spec.model_spec import ModelSpec
from models.vae.config import Tiling
from models.vae.normalisation import Normalisation
from models.vae.packed_latents import PackedLatentPipeline
from models.vae.video_config import VideoVaeConfig


class LatentFramePipeline(PackedLatentPipeline[Networks]):
    """Pipeline with one frame of a video VAE, whose latents are normalized by channel."""

    def __init__(
        self, spec: ModelSpec, modules: Networks, dtype: Any, vae_tiling: Tiling | None
    ) -> None:
        config: VideoVaeConfig = modules.vae.config  # type: ignore[attr-defined]
        super().__init__(spec, modules, dtype, vae_tiling)
        self.normalisation = Normalisation.of(config)

    def decode(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode a row's latents with the VAE."""
        latents = self.normalisation.undo(self.unpacked(row, row["latents"]))
        decoded: jax.Array = self._vae(weights).decode(
            latents[None, None].astype(self.dtype), to_uint8
        )[0, 0]
        return decoded

    def encode_image(
        self, weights: Networks, pixels: Array, noise: Array | None
    ) -> Float[Array, "h w c"]:
        """Sample the VAE's posterior, and normalize the sample for the denoising network.

        Args:
            noise: None: return the posterior's mean.
        """
        mean, log_variance = self._vae(weights).encode(pixels[None, None].astype(self.dtype))
        mean, log_variance = (x[0, 0].astype(jnp.float32) for x in (mean, log_variance))
        sample = mean if noise is None else mean + jnp.exp(0.5 * log_variance) * noise
        return self.normalisation.apply(sample)
