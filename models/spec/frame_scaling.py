"""Scaling of the frames of a request's videos to the size that a model reads them in.

A pool decodes and scales frames in a separate process, which holds one frame at a time. Models call
the same functions, which return a frame unchanged if it already has the size. Nothing here needs
JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PIL import Image


@dataclass(frozen=True)
class FrameScaling:
    """Scaling of the video of a request field."""

    fit: Literal["cover", "stretch"] = "stretch"
    """Cut to the size's proportions, or stretched to them."""
    side_px: int | None = None
    """Side of a square; None: frames have the size of the video that is drawn."""
    is_grey: bool = False
    """Whether frames are turned to grey levels before they are scaled."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size of frames for a video of that width and height."""
        return (width, height) if self.side_px is None else (self.side_px, self.side_px)

    def scaled(self, frame: Image.Image, size: tuple[int, int]) -> Image.Image:
        """Return a frame in that size."""
        image = frame.convert("L") if self.is_grey else frame
        return covering(image, size) if self.fit == "cover" else stretched(image, size)


def covering(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return a picture's middle in that size, its proportions kept.

    Source: diffusers image_processor.py, VaeImageProcessor.resize, resize_mode "crop".
    """
    width, height = size
    is_wide = width / height <= picture.width / picture.height
    sides = (
        picture.width * height // picture.height if is_wide else width,
        height if is_wide else picture.height * width // picture.width,
    )
    left, top = sides[0] // 2 - width // 2, sides[1] // 2 - height // 2
    resized = stretched(picture, sides)
    return resized.crop((left, top, left + width, top + height))


def stretched(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return a whole picture in that size, whatever its proportions."""
    return picture.resize(size, Image.Resampling.LANCZOS)
