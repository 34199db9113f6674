"""Pipelines of images that are packed latents of any autoencoder while they are denoised."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import jax
from jaxtyping import Array, Float

from models.interface.denoising_pipeline import DenoisingPipeline, Networks
from models.interface.images import to_uint8
from models.interface.pipeline import PyTree, RequestError
from models.spec.model_spec import ModelSpec
from models.vae.config import Tiling
from models.vae.tiled import tiled


class PackedLatentPipeline(DenoisingPipeline[Networks]):
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
        self.dtype, self.vae_tiling = dtype, vae_tiling
        self.downsampling: int = modules.vae.config.downsampling  # type: ignore[attr-defined]
        """Pixels a latent, along each side."""

    @staticmethod
    @abstractmethod
    def unpack(packed: Float[Array, "tokens patch"], h: int, w: int) -> Float[Array, "h w c"]:
        """Unpack the tokens of latents."""

    @abstractmethod
    def encode_image(
        self, weights: Networks, pixels: Array, noise: Array | None
    ) -> Float[Array, "h w c"]:
        """A sample of the VAE's posterior, as the denoising network wants it.

        Args:
            noise: None: the posterior's mean.
        """

    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents by a linear map."""
        latents = self.unpack(row["denoised"], *row["grid"].shape[:2])
        return to_uint8(self.network(weights, "preview")(latents))

    def spatial(self, row: PyTree) -> Float[Array, "h w c"]:
        """Unpack a row's latents."""
        return self.unpack(row["latents"], *row["grid"].shape[:2])

    def grid_of(self, *, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of the VAE's latents. Raises: RequestError for a size between two."""
        multiple, down = self.spec.limits.size_multiple_px, self.downsampling
        for name, size in (("width", width), ("height", height)):
            if size < multiple or size % multiple:
                raise RequestError(name, f"must be a positive multiple of {multiple}, not {size}")
        return height // down, width // down

    def _vae(self, weights: Networks) -> Any:
        return tiled(self.network(weights, "vae"), self.vae_tiling)
