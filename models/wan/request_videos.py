"""Videos in a request: a video file, or a list of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from PIL import Image

from models.interface.images import open_image
from models.media.image_files import ImageFileError
from models.media.video_files import frames
from models.spec.request import RequestError
from models.spec.request_images import listed_paths


def video_frames(images: Mapping[str, bytes], field: str) -> Iterator[Image.Image]:
    """Yield a video's frames, one at a time. Raises: RequestError."""
    for path in listed_paths(images, field):
        yield open_image(images[path], path)
    if field not in images:
        return
    try:
        yield from frames(images[field], is_mask="mask" in field)
    except ImageFileError as error:
        raise RequestError(field, str(error)) from error


def is_present(field: str, images: Mapping[str, bytes]) -> bool:
    """Return whether a request contains that image or video."""
    return field in images or f"{field}.0" in images
