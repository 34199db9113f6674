"""Image pipelines whose packed latents are those of an `AutoencoderKL`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.interface.denoising_pipeline import Networks
from models.interface.images import to_uint8
from models.interface.pipeline import PyTree
from models.spec.model_spec import ModelSpec
from models.vae.config import Tiling, VaeConfig
from models.vae.packed_latents import PackedLatentPipeline


class LatentImagePipeline(PackedLatentPipeline[Networks]):
    """Pipeline with an `AutoencoderKL`, whose latents have one shift and one scaling factor."""

    def __init__(
        self, spec: ModelSpec, modules: Networks, dtype: Any, vae_tiling: Tiling | None
    ) -> None:
        self.vae_config: VaeConfig = modules.vae.config  # type: ignore[attr-defined]
        super().__init__(spec, modules, dtype, vae_tiling)

    def decode(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode a row's latents with the VAE."""
        latents = self.unpacked(row, row["latents"])
        latents = latents / self.vae_config.scaling_factor + (self.vae_config.shift_factor or 0)
        return to_uint8(self._vae(weights).decode(latents[None].astype(self.dtype))[0])

    def encode_image(
        self, weights: Networks, pixels: Array, noise: Array | None
    ) -> Float[Array, "h w c"]:
        """Sample the VAE's posterior; shift and scale the sample for the denoising network.

        Args:
            noise: None: return the posterior's mean.
        """
        mean, log_variance = self._vae(weights).encode(pixels[None].astype(self.dtype))
        mean, log_variance = (x[0].astype(jnp.float32) for x in (mean, log_variance))
        sample = mean if noise is None else mean + jnp.exp(0.5 * log_variance) * noise
        shift = self.vae_config.shift_factor or 0
        scaled: Array = (sample - shift) * self.vae_config.scaling_factor
        return scaled
