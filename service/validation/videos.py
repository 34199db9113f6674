"""Consistency of a request's videos, after their frames are counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from models.spec.image_files import ImageFile
from models.spec.request_images import field_of
from service.errors.problems import FieldError

VIDEOS, MASK = ("control_video", "background_video"), "mask_video"
"""Fields of videos, of which a request has at most one, and of their mask."""


def wrong_masks(files: Mapping[str, ImageFile]) -> Iterator[FieldError]:
    """Report a mask whose number of frames is neither its video's nor 1.

    Args:
        files: all files of a request, by path.
    """
    masks = _frames(MASK, files)
    for name in VIDEOS:
        frames = _frames(name, files)
        if frames and masks not in (0, 1, frames):
            message = f"has {masks} frames, and {name} {frames}: send as many, or one image"
            yield FieldError(MASK, message)


def _frames(field: str, files: Mapping[str, ImageFile]) -> int:
    """Count the frames of a field with a video or a list of frames."""
    return sum(file.frames for path, file in files.items() if field_of(path) == field)
