"""Normalization of latents for a denoising network: by channel, with config values."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.vae.video_config import VideoVaeConfig


@dataclass(frozen=True)
class Normalisation:
    """Conversion between the VAE's latents and normalized ones, by channel, in float32."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, vae: VideoVaeConfig) -> Normalisation:
        """Return the normalization of a VAE's latents."""
        return cls(vae.latents_mean, vae.latents_std)

    def apply(self, latents: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        """Normalize a VAE's latents by channel."""
        return (latents.astype(jnp.float32) - np.asarray(self.mean, np.float32)) * self._inverse

    def undo(self, latents: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        """Denormalize latents by channel, for the VAE."""
        return latents / self._inverse + np.asarray(self.mean, np.float32)

    @property
    def _inverse(self) -> np.ndarray:
        """1 / std, rounded once: the reference multiplies and divides by this value."""
        return np.float32(1) / np.asarray(self.std, np.float32)
