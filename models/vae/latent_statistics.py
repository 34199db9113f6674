"""Pipelines of images that are packed latents, normed by the autoencoder's own statistics."""

from __future__ import annotations

import jax
from jaxtyping import Float

from models.interface.denoising_pipeline import Networks
from models.interface.images import to_uint8
from models.interface.pipeline import PyTree
from models.vae.latent_images import LatentImagePipeline
from models.vae.patches import pack, unpack


class NormedLatentPipeline(LatentImagePipeline[Networks]):
    """Pipeline whose packed latents are normed by channel, as `batch_normed` says."""

    unpack = staticmethod(unpack)

    def decode(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode the latents by the VAE."""
        latents = self._restored(weights, row, "latents")
        return to_uint8(self._vae(weights).decode(latents[None].astype(self.dtype))[0])

    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents by a linear map."""
        latents = self._restored(weights, row, "denoised")
        return to_uint8(self.network(weights, "preview")(latents))

    def packed(
        self, weights: Networks, latents: Float[jax.Array, "h w c"]
    ) -> Float[jax.Array, "tokens patch"]:
        """Pack latents, normed as the denoising network has them."""
        found: jax.Array = self.network(weights, "vae").statistics.normed(pack(latents))
        return found

    def _restored(self, weights: Networks, row: PyTree, name: str) -> Float[jax.Array, "h w c"]:
        """Return latents of a row as the VAE has them."""
        statistics = self.network(weights, "vae").statistics
        return self.unpack(statistics.restored(row[name]), *row["grid"].shape[:2])
