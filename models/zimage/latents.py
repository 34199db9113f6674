"""Z-Image's packed latents: 2 x 2 patches of the VAE's latents, one token each."""

from __future__ import annotations

from jaxtyping import Array, Float

from models.zimage.config import PATCH


def pack(latents: Float[Array, "h w c"]) -> Float[Array, "tokens patch"]:
    """[h, w, c] → [h/2 · w/2, 4c], the patch ordered row, column, channel.

    Source: diffusers transformer_z_image.py, ZImageTransformer2DModel._patchify_image.
    """
    h, w, c = latents.shape
    patches = latents.reshape(h // PATCH, PATCH, w // PATCH, PATCH, c).transpose(0, 2, 1, 3, 4)
    return patches.reshape(h * w // PATCH**2, PATCH**2 * c)


def unpack(packed: Float[Array, "tokens patch"], h: int, w: int) -> Float[Array, "h w c"]:
    """The inverse of `pack`."""
    patches = packed.reshape(h // PATCH, w // PATCH, PATCH, PATCH, -1).transpose(0, 2, 1, 3, 4)
    return patches.reshape(h, w, -1)
