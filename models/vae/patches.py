"""Packed latents: 2 x 2 patches of the VAE's latents, one token each.

A patch is ordered channel, row, column; or by pixel: row, column, channel.
Source: diffusers pipeline_flux.py, FluxPipeline._pack_latents; by pixel: transformer_z_image.py,
ZImageTransformer2DModel._patchify_image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Array, Float, Float32

Axes = tuple[int, ...]

PATCH = 2
"""Rows and columns of latents that one token packs."""


def pack(latents: Float[Array, "h w c"]) -> Float[Array, "tokens patch"]:
    """Pack 2 × 2 latents into tokens: [h, w, c] to [h/2 · w/2, 4c]."""
    packed: Array = _packed(latents, (0, 2, 4, 1, 3))
    return packed


def pack_on_host(latents: Float32[np.ndarray, "h w c"]) -> Float32[np.ndarray, "tokens patch"]:
    """Pack latents into tokens as `pack`, in NumPy."""
    packed: np.ndarray = _packed(latents, (0, 2, 4, 1, 3))
    return packed


def unpack(packed: Float[Array, "tokens patch"], h: int, w: int) -> Float[Array, "h w c"]:
    """Unpack tokens to latents [h, w, c]: the inverse of `pack`."""
    c = packed.shape[-1] // PATCH**2
    return _unpacked(packed, (h, w), (c, PATCH, PATCH), (0, 3, 1, 4, 2))


def pack_by_pixel(latents: Float[Array, "h w c"]) -> Float[Array, "tokens patch"]:
    """Pack latents into tokens whose features are ordered by pixel, then channel."""
    packed: Array = _packed(latents, (0, 2, 1, 3, 4))
    return packed


def pack_by_pixel_on_host(
    latents: Float32[np.ndarray, "h w c"],
) -> Float32[np.ndarray, "tokens patch"]:
    """Run `pack_by_pixel` in NumPy."""
    packed: np.ndarray = _packed(latents, (0, 2, 1, 3, 4))
    return packed


def unpack_by_pixel(packed: Float[Array, "tokens patch"], h: int, w: int) -> Float[Array, "h w c"]:
    """Unpack tokens to latents: the inverse of `pack_by_pixel`."""
    c = packed.shape[-1] // PATCH**2
    return _unpacked(packed, (h, w), (PATCH, PATCH, c), (0, 2, 1, 3, 4))


def _packed(latents: Any, order: Axes) -> Any:
    """Pack latents; `order` is of (token row, row in it, token column, column in it, channel)."""
    h, w, c = latents.shape
    patches = latents.reshape(h // PATCH, PATCH, w // PATCH, PATCH, c).transpose(order)
    return patches.reshape(h // PATCH * (w // PATCH), PATCH**2 * c)


def _unpacked(
    packed: Float[Array, "tokens patch"], size: tuple[int, int], patch: Axes, order: Axes
) -> Float[Array, "h w c"]:
    """Unpack tokens of patches of that shape; `order` restores rows, columns and channels."""
    h, w = size
    patches = packed.reshape(h // PATCH, w // PATCH, *patch).transpose(order)
    return patches.reshape(h, w, -1)
