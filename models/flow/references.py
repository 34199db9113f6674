"""Preprocessing of reference images: scaling, cropping to whole tokens, and their place in texts.

Source: diffusers pipeline_flux2_klein.py, Flux2KleinPipeline.__call__, and its image_processor.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32
from PIL import Image

from models.interface.images import pixels_of
from models.media.scaling import size_of_area, within_pixels
from models.spec.model_spec import ModelSpec
from models.spec.request import RequestError
from models.text.tokenizer import Tokens
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
    """Downscale a reference image, and crop it around the centre to whole tokens."""
    size = within_pixels(image.size, spec.sized_within_px)
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    width, height = (side - side % spec.limits.size_multiple_px for side in size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def scaled(field: str, image: Image.Image, area: int, multiple: int = 1) -> Image.Image:
    """Scale an image to about `area` pixels.

    Args:
        multiple: factor by which both sides in pixels must be divisible.

    Raises: RequestError: the image is too narrow.
    """
    sides = [side - side % multiple for side in size_of_area(image.size, area)]
    if not all(sides):
        raise RequestError(field, f"is too narrow to be scaled to {area} pixels")
    return image.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)


def with_images(read: Tokens, places: Sequence[int], counts: Sequence[int]) -> Tokens:
    """Repeat the token of each image as often as the image has features."""
    added = np.repeat(places, np.subtract(counts, 1))

    def repeated(tokens: np.ndarray) -> np.ndarray:
        return np.insert(tokens, added, tokens[:, added], axis=1)

    return Tokens(repeated(read.ids), repeated(read.mask))
