"""Stand-in inputs for the second pass of an image, before the first pass has run."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping

import numpy as np
from PIL import Image

from models.interface.image_start import latents_file
from models.interface.pipeline import Fields
from models.spec.hires import FIELD as HIRES
from models.spec.hires import LATENT
from models.spec.model_spec import ModelSpec


def begins_with(fields: Fields, spec: ModelSpec) -> str:
    """Return the field that holds the input image of a request's second pass."""
    return HIRES if upscaler_of(fields) in spec.enlargers else "image"


def upscaler_of(fields: Fields) -> str:
    """Return the upscaler between the passes; without hires fix, the latents' resizer."""
    options = fields.get(HIRES)
    return str(options["upscaler"]) if options else LATENT


def with_stand_in(fields: Fields, spec: ModelSpec, images: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the images of the second pass, with a stand-in for its input.

    Args:
        images: images of the request.
    """
    start = stand_in(upscaler_of(fields), spec.enlargers)
    return {**images, begins_with(fields, spec): start}


def stand_in(upscaler: str, enlargers: Collection[str] = ()) -> bytes:
    """Return a stand-in for the second pass's input image, of the same kind: latents or a pixel.

    The kind matters: an image draws noise for the VAE's posterior, and latents do not.

    Args:
        enlargers: names of the model's own latent enlargers.
    """
    if upscaler in enlargers:
        return latents_file(np.zeros(1, np.float32))
    if upscaler == LATENT:
        return latents_file(np.zeros((1, 1, 1), np.float32))
    return image_file(np.zeros((1, 1, 3), np.uint8))


def image_file(pixels: np.ndarray) -> bytes:
    """Encode an image as uncompressed PNG, lossless and fast."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()
