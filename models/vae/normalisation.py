"""Latents as a denoising network has them: by channel, of the encoder's mean and deviation."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.vae.video_config import VideoVaeConfig


@dataclass(frozen=True)
class Normalisation:
    """Normalisation between the VAE's latents and the transformer's: by channel, float32."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, vae: VideoVaeConfig) -> Normalisation:
        """Return the normalisation of a VAE's latents."""
        return cls(vae.latents_mean, vae.latents_std)

    def apply(self, latents: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        """Return normalised latents."""
        return (latents.astype(jnp.float32) - np.asarray(self.mean, np.float32)) * self._inverse

    def undo(self, latents: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        """Return latents as the VAE has them."""
        return latents / self._inverse + np.asarray(self.mean, np.float32)

    @property
    def _inverse(self) -> np.ndarray:
        """1 / std, rounded once: the reference multiplies and divides by this one."""
        return np.float32(1) / np.asarray(self.std, np.float32)
