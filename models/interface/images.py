"""Conversion of images between files and the network's pixels, and of pixels to bytes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32
from PIL import Image

from models.interface.finite import record_finite
from models.media.image_files import decode
from models.spec.request import RequestError


def open_image(data: bytes, field: str = "image") -> Image.Image:
    """Open an image file, upright, in RGB, on white; masks keep the colours of transparent pixels.

    Args:
        field: of the request, for the error.

    Raises: RequestError: the bytes are no PNG, JPEG or WebP that can be decoded.
    """
    try:
        return decode(data, is_mask="mask" in field)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise RequestError(field, f"is not an image that can be read: {error}") from error


def read_image(data: bytes, width: int, height: int, field: str = "image") -> np.ndarray:
    """Read an image file as float32 [height, width, 3] in [-1, 1], resized as in diffusers.

    Raises: RequestError: the bytes are no PNG, JPEG or WebP that can be decoded.
    """
    return pixels_of(open_image(data, field).resize((width, height), Image.Resampling.LANCZOS))


def read_mask(
    data: bytes, width: int, height: int, field: str = "mask_image"
) -> Float32[np.ndarray, "height width"]:
    """Read a mask file: 1 for white, 0 elsewhere; resized, then grey, in diffusers' order.

    Raises: RequestError: the bytes are no PNG, JPEG or WebP that can be decoded.
    """
    resized = open_image(data, field).resize((width, height), Image.Resampling.LANCZOS)
    levels = np.asarray(resized.convert("L"), np.float32) / 255
    return (levels >= 0.5).astype(np.float32)


def pixels_of(image: Image.Image) -> np.ndarray:
    """Convert an opened image to float32 [height, width, 3] in [-1, 1]."""
    return np.asarray(image, np.float32) / 255 * 2 - 1


def to_uint8(pixels: Float[Array, "*batch colours"]) -> jax.Array:
    """Convert pixels in [-1, 1] to 0..255, clipped and rounded half to even as in diffusers."""
    record_finite(pixels)
    unit = jnp.clip(pixels.astype(jnp.float32) * 0.5 + 0.5, 0, 1)
    return jnp.round(unit * 255).astype(jnp.uint8)


def to_frames(pixels: Float[Array, "*batch colours"]) -> jax.Array:
    """Convert pixels in [-1, 1] to 0..255, clipped and truncated as in diffusers' export_to_video.

    `to_uint8` rounds instead, for images.
    """
    record_finite(pixels)
    unit = jnp.clip(pixels.astype(jnp.float32) * 0.5 + 0.5, 0, 1)
    return (unit * 255).astype(jnp.uint8)
