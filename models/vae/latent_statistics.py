"""Image pipelines whose packed latents are normalized by statistics in the autoencoder."""

from __future__ import annotations

import jax
from jaxtyping import Float

from models.interface.denoising_pipeline import Networks
from models.interface.images import to_uint8
from models.interface.pipeline import PyTree
from models.vae.latent_images import LatentImagePipeline
from models.vae.patches import pack, unpack


class NormedLatentPipeline(LatentImagePipeline[Networks]):
    """Pipeline whose packed latents are normalized by channel (`batch_normed`)."""

    unpack = staticmethod(unpack)

    def decode(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode a row's latents with the VAE."""
        latents = self._restored(weights, row, "latents")
        return to_uint8(self._vae(weights).decode(latents[None].astype(self.dtype))[0])

    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents with a linear map."""
        latents = self._restored(weights, row, "denoised")
        return to_uint8(self.network(weights, "preview")(latents))

    def packed(
        self, weights: Networks, latents: Float[jax.Array, "h w c"]
    ) -> Float[jax.Array, "tokens patch"]:
        """Pack latents and normalize them for the denoising network."""
        output: jax.Array = self.network(weights, "vae").statistics.normed(pack(latents))
        return output

    def _restored(self, weights: Networks, row: PyTree, name: str) -> Float[jax.Array, "h w c"]:
        """Return a row's latents unpacked and denormalized, for the VAE."""
        statistics = self.network(weights, "vae").statistics
        return self.unpacked(row, statistics.restored(row[name]))
