"""Packed latents: 2 x 2 patches of the VAE's latents, one token each, ordered channel, row, column.

Source: diffusers pipeline_flux.py, FluxPipeline._pack_latents.
"""

from __future__ import annotations

from jaxtyping import Array, Float

PATCH = 2
"""Rows and columns of latents that one token packs."""


def pack(latents: Float[Array, "h w c"]) -> Float[Array, "tokens patch"]:
    """[h, w, c] → [h/2 · w/2, 4c]."""
    h, w, c = latents.shape
    patches = latents.reshape(h // 2, 2, w // 2, 2, c).transpose(0, 2, 4, 1, 3)
    return patches.reshape(h // 2 * (w // 2), 4 * c)


def unpack(packed: Float[Array, "tokens patch"], h: int, w: int) -> Float[Array, "h w c"]:
    """The inverse of `pack`."""
    c = packed.shape[-1] // 4
    patches = packed.reshape(h // 2, w // 2, c, 2, 2).transpose(0, 3, 1, 4, 2)
    return patches.reshape(h, w, c)
