"""Preprocessing of reference images: downscaling to the spec's pixels, cropping to whole tokens.

Source: diffusers pipeline_flux2_klein.py, Flux2KleinPipeline.__call__, and its image_processor.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float32
from PIL import Image

from models.interface.images import pixels_of
from models.media.scaling import within_pixels
from models.spec.model_spec import ModelSpec
from models.spec.request import RequestError
from models.vae.references import open_references


def read_references(
    images: Mapping[str, bytes], spec: ModelSpec
) -> list[Float32[np.ndarray, "height width colours"]]:
    """Return the references' pixels in [-1, 1], in order.

    Args:
        images: files by their paths in the request.

    Raises: RequestError: an image cannot be decoded, is too small, or has too large an aspect
    ratio.
    """
    opened = open_references(images)
    for path, image in opened.items():
        if wrong := spec.wrong_shape(path, *image.size):
            raise RequestError(path, wrong)
    return [pixels_of(_in_tokens(image, spec)) for image in opened.values()]


def _in_tokens(image: Image.Image, spec: ModelSpec) -> Image.Image:
    """Downscale an image, and crop it around the centre to whole tokens."""
    size = within_pixels(image.size, spec.sized_within_px)
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    width, height = (side - side % spec.limits.size_multiple_px for side in size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
