"""Image pipelines with packed latents of any autoencoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
from jaxtyping import Array, Float

from models.interface.denoising_pipeline import DenoisingPipeline, Networks
from models.interface.images import to_uint8
from models.interface.pipeline import PyTree
from models.interface.token_buckets import grid_of
from models.spec.model_spec import ModelSpec
from models.spec.request import RequestError
from models.vae.config import Tiling
from models.vae.patches import PATCH
from models.vae.references import reference_latents
from models.vae.tiled import tiled


class PackedLatentPipeline(DenoisingPipeline[Networks]):
    """Base pipeline for the networks `vae` and `preview`.

    A row has latents and denoised [tokens, patch], and grid [h, w], an array without values in the
    shape of the VAE's latents; or the leaves of `models.interface.token_buckets`.

    Args:
        dtype: dtype in which the networks compute.
    """

    PATCH: ClassVar[int] = PATCH
    """Rows and columns of latents that one token packs."""

    def __init__(
        self, spec: ModelSpec, modules: Networks, dtype: Any, vae_tiling: Tiling | None
    ) -> None:
        super().__init__(spec, modules)
        self.dtype, self.vae_tiling = dtype, vae_tiling
        self.downsampling: int = modules.vae.config.downsampling  # type: ignore[attr-defined]
        """Pixels per latent, along each side."""

    @staticmethod
    @abstractmethod
    def unpack(packed: Float[Array, "tokens patch"], h: int, w: int) -> Float[Array, "h w c"]:
        """Unpack tokens of 2 × 2 latents into latents [h, w, c]."""

    @abstractmethod
    def encode_image(
        self, weights: Networks, pixels: Array, noise: Array | None
    ) -> Float[Array, "h w c"]:
        """Sample the VAE's posterior, for the denoising network.

        Args:
            noise: None: return the posterior's mean.
        """

    def references(
        self,
        weights: Networks,
        inputs: Mapping[str, jax.Array],
        pack: Callable[[Float[Array, "h w c"]], Float[Array, "tokens patch"]],
    ) -> dict[str, Any]:
        """Encode references as `reference_latents`, by the posterior's means."""
        return reference_latents(
            inputs, lambda pixels: self.encode_image(weights, pixels, None), pack
        )

    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents with a linear map."""
        latents = self.unpacked(row, row["denoised"])
        return to_uint8(self.network(weights, "preview")(latents))

    def spatial(self, row: PyTree) -> Float[Array, "h w c"]:
        """Unpack a row's tokens to latents in spatial order."""
        return self.unpacked(row, row["latents"])

    def unpacked(self, row: PyTree, packed: Float[Array, "tokens patch"]) -> Float[Array, "h w c"]:
        """Unpack tokens of a row, without padding of its token bucket."""
        h, w = grid_of(row)
        count = h * w // self.PATCH**2
        return self.unpack(packed[:count] if len(packed) > count else packed, h, w)

    def grid_of(self, *, width: int, height: int) -> tuple[int, int]:
        """Return rows and columns of the VAE's latents.

        Raises: RequestError: a size that is not a positive multiple.
        """
        multiple, down = self.spec.limits.size_multiple_px, self.downsampling
        for name, size in (("width", width), ("height", height)):
            if size < multiple or size % multiple:
                raise RequestError(name, f"must be a positive multiple of {multiple}, not {size}")
        return height // down, width // down

    def _vae(self, weights: Networks) -> Any:
        return tiled(self.network(weights, "vae"), self.vae_tiling)
