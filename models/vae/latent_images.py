"""Pipelines of images that are packed latents of an `AutoencoderKL` while they are denoised."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.interface.denoising_pipeline import DenoisingPipeline, Networks
from models.interface.images import to_uint8
from models.interface.pipeline import PyTree, RequestError
from models.spec.model_spec import ModelSpec
from models.vae.config import Tiling, VaeConfig
from models.vae.tiled import tiled


class LatentImagePipeline(DenoisingPipeline[Networks]):
    """Part of a family's pipeline that its autoencoder makes: the networks `vae` and `preview`.

    A row has latents and denoised [tokens, patch], and grid [h, w], the shape of the VAE's latents
    as an array without values.

    Args:
        dtype: that the networks compute in.
    """

    def __init__(
        self, spec: ModelSpec, modules: Networks, dtype: Any, vae_tiling: Tiling | None
    ) -> None:
        super().__init__(spec, modules)
        self.vae_config: VaeConfig = modules.vae.config  # type: ignore[attr-defined]
        self.dtype, self.vae_tiling = dtype, vae_tiling

    @staticmethod
    @abstractmethod
    def unpack(packed: Float[Array, "tokens patch"], h: int, w: int) -> Float[Array, "h w c"]:
        """Unpack the tokens of latents."""

    def decode(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode the latents by the VAE."""
        latents = self.unpack(row["latents"], *row["grid"].shape[:2])
        latents = latents / self.vae_config.scaling_factor + (self.vae_config.shift_factor or 0)
        return to_uint8(self._vae(weights).decode(latents[None].astype(self.dtype))[0])

    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents by a linear map."""
        latents = self.unpack(row["denoised"], *row["grid"].shape[:2])
        return to_uint8(self.network(weights, "preview")(latents))

    def encode_image(
        self, weights: Networks, pixels: Array, noise: Array | None
    ) -> Float[Array, "h w c"]:
        """A sample of the VAE's posterior, shifted and scaled as the denoising network wants it.

        Args:
            noise: None: the posterior's mean.
        """
        mean, log_variance = self._vae(weights).encode(pixels[None].astype(self.dtype))
        mean, log_variance = (x[0].astype(jnp.float32) for x in (mean, log_variance))
        sample = mean if noise is None else mean + jnp.exp(0.5 * log_variance) * noise
        shift = self.vae_config.shift_factor or 0
        return (sample - shift) * self.vae_config.scaling_factor

    def grid_of(self, *, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of the VAE's latents. Raises: RequestError for a size between two."""
        multiple, down = self.spec.limits.size_multiple_px, self.vae_config.downsampling
        for name, size in (("width", width), ("height", height)):
            if size < multiple or size % multiple:
                raise RequestError(name, f"must be a positive multiple of {multiple}, not {size}")
        return height // down, width // down

    def _vae(self, weights: Networks) -> Any:
        return tiled(self.network(weights, "vae"), self.vae_tiling)
