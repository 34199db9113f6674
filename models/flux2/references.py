"""Reference images of FLUX.2: scaled down to a megapixel, cut to whole tokens from the middle.

Source: diffusers pipeline_flux2_klein.py, Flux2KleinPipeline.__call__, and its image_processor.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float32
from PIL import Image

from models.interface.images import open_image, pixels_of
from models.interface.pipeline import RequestError
from models.spec.image_sizes import within_pixels
from models.vae.references import reference_paths

MOST_PIXELS = 1 << 20
LEAST_SIDE_PX, MOST_RATIO = 64, 8


def read_references(
    images: Mapping[str, bytes], multiple: int
) -> list[Float32[np.ndarray, "height width colours"]]:
    """Return the references' pixels in [-1, 1], in their order.

    Args:
        images: files by their paths in the request.
        multiple: pixels of a token's side.

    Raises: RequestError: an image that cannot be read, too small, or too long for its width.
    """
    return [read_reference(images[path], multiple, path) for path in reference_paths(images)]


def read_reference(
    data: bytes, multiple: int, field: str
) -> Float32[np.ndarray, "height width colours"]:
    """An image file → pixels in [-1, 1]. Raises: RequestError: as `read_references`."""
    image = open_image(data, field)
    if min(image.size) < max(LEAST_SIDE_PX, multiple):
        least = max(LEAST_SIDE_PX, multiple)
        raise RequestError(field, f"must be at least {least} pixels wide and high")
    if max(image.size) > MOST_RATIO * min(image.size):
        raise RequestError(field, f"must be at most {MOST_RATIO} times as long as wide")
    size = within_pixels(image.size, MOST_PIXELS)
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    return pixels_of(_from_the_middle(image, multiple))


def _from_the_middle(image: Image.Image, multiple: int) -> Image.Image:
    """Cut off what is no whole token, half of it at either end."""
    width, height = (side - side % multiple for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
