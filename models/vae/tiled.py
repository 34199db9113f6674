"""Autoencoders that work in tiles, with the same methods as those that work at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from models.vae.config import Tiling, VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.tiling import in_tiles
from models.vae.video import VideoAutoencoder
from models.vae.video_blocks import Frames
from models.vae.video_config import VideoVaeConfig
from models.vae.video_resample import from_patches


@overload
def tiled(vae: AutoencoderKL, tiling: Tiling | None) -> AutoencoderKL | TiledImages: ...
@overload
def tiled(vae: VideoAutoencoder, tiling: Tiling | None) -> VideoAutoencoder | TiledVideos: ...
def tiled(
    vae: AutoencoderKL | VideoAutoencoder, tiling: Tiling | None
) -> AutoencoderKL | VideoAutoencoder | TiledImages | TiledVideos:
    """Wrap an autoencoder so that it works in tiles; None: return it unchanged."""
    if tiling is None:
        return vae
    return TiledImages(vae, tiling) if isinstance(vae, AutoencoderKL) else TiledVideos(vae, tiling)


class TiledImages:
    """AutoencoderKL that works in tiles. Raises: ValueError: tiles that are not whole latents."""

    def __init__(self, vae: AutoencoderKL, tiling: Tiling) -> None:
        self.vae, self.pixels = vae, tiling
        self.latents = tiling.smaller(vae.config.downsampling)

    @property
    def config(self) -> VaeConfig:
        """Config of the wrapped VAE."""
        return self.vae.config

    def encode(
        self, pixels: Float[Array, "batch height width colours"]
    ) -> tuple[Float[Array, "batch h w latent"], Float[Array, "batch h w latent"]]:
        """Encode in tiles, as `AutoencoderKL.encode`."""
        moments = in_tiles(self.vae.moments, pixels, self.pixels, self.latents)
        return self.vae.posterior(moments)

    def decode(
        self, latents: Float[Array, "batch h w latent"]
    ) -> Float[Array, "batch height width colours"]:
        """Decode in tiles, as `AutoencoderKL.decode`."""
        return in_tiles(self.vae.decode, latents, self.latents, self.pixels)


class TiledVideos:
    """VideoAutoencoder that works in tiles, each a video; patches are blended.

    Raises: ValueError: tiles that are not whole latents.
    """

    def __init__(self, vae: VideoAutoencoder, tiling: Tiling) -> None:
        self.vae, self.tiling = vae, tiling
        self.latents = tiling.smaller(vae.config.downsampling)

    @property
    def config(self) -> VideoVaeConfig:
        """Config of the wrapped VAE."""
        return self.vae.config

    def encode(
        self, pixels: Float[Array, "batch frames height width colours"]
    ) -> tuple[Float[Array, "batch f h w latent"], Float[Array, "batch f h w latent"]]:
        """Encode in tiles, as `VideoAutoencoder.encode`; sides count patches, as in diffusers."""
        tiling = self.tiling.larger(self.config.patch)
        latents = tiling.smaller(self.config.downsampling)
        return self.vae.posterior(in_tiles(self.vae.moments, pixels, tiling, latents))

    def decode(
        self,
        latents: Float[Array, "batch f h w latent"],
        finish: Callable[[Frames], Array] = lambda pixels: pixels,
    ) -> Shaped[Array, "batch frames ..."]:
        """Decode in tiles, as `VideoAutoencoder.decode`; `finish` gets all frames at once."""
        patches = in_tiles(
            self.vae.patches, latents, self.latents, self.tiling.smaller(self.config.patch)
        )
        return finish(jnp.clip(from_patches(patches, self.config.patch), -1.0, 1.0))
