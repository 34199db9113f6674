"""Second pass of an image before the first is drawn: with a stand-in for what it begins with."""

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
    """Return the field of what the second pass of a request begins with."""
    return HIRES if upscaler_of(fields) in spec.enlargers else "image"


def upscaler_of(fields: Fields) -> str:
    """Return the name of what enlarges the first pass; without hires fix its latents are."""
    asked = fields.get(HIRES)
    return str(asked["upscaler"]) if asked else LATENT


def stood_in(fields: Fields, spec: ModelSpec, images: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the images of the second pass, of which one is not known yet.

    Args:
        images: of the request.
    """
    start = unknown(upscaler_of(fields), spec.enlargers)
    return {**images, begins_with(fields, spec): start}


def unknown(upscaler: str, enlargers: Collection[str] = ()) -> bytes:
    """Return the image of a second pass before the first one is drawn: latents, or a pixel.

    Of the kind that it will be: an image draws noise for the VAE's posterior, and latents don't.

    Args:
        enlargers: names of those of the model's own latents.
    """
    if upscaler in enlargers:
        return latents_file(np.zeros(1, np.float32))
    if upscaler == LATENT:
        return latents_file(np.zeros((1, 1, 1), np.float32))
    return image_file(np.zeros((1, 1, 3), np.uint8))


def image_file(pixels: np.ndarray) -> bytes:
    """Return an image as a file without loss, quickly."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()
