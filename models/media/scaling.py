"""Scaling of input images and video frames to the size that a model reads.

A worker decodes and scales frames in a separate process, which holds one frame at a time. Models
call the same functions, which return a frame unchanged if it already has the size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from PIL import Image

MULTIPLE_PX = 32
"""Multiple to which the sides of a given area are rounded."""


@dataclass(frozen=True)
class FrameScaling:
    """Scaling rule for the video of a request field."""

    fit: Literal["cover", "stretch"] = "stretch"
    """`cover`: crop to the target's proportions. `stretch`: distort to them."""
    side_px: int | None = None
    """Side of a square target; None: the size of the output video."""
    is_grey: bool = False
    """Whether frames are converted to grey levels before scaling."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size of an input video's frames for an output of that width and height."""
        return (width, height) if self.side_px is None else (self.side_px, self.side_px)

    def scaled(self, frame: Image.Image, size: tuple[int, int]) -> Image.Image:
        """Scale an input video's frame to that size."""
        image = frame.convert("L") if self.is_grey else frame
        return covering(image, size) if self.fit == "cover" else stretched(image, size)


def covering(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize an image to cover a size, and crop it to the centre, preserving proportions.

    Source: diffusers image_processor.py, VaeImageProcessor.resize, resize_mode "crop".
    """
    width, height = size
    is_wide = width / height <= image.width / image.height
    sides = (
        image.width * height // image.height if is_wide else width,
        height if is_wide else image.height * width // image.width,
    )
    left, top = sides[0] // 2 - width // 2, sides[1] // 2 - height // 2
    resized = stretched(image, sides)
    return resized.crop((left, top, left + width, top + height))


def stretched(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize an image to exactly that size, regardless of proportions."""
    return image.resize(size, Image.Resampling.LANCZOS)


def within_pixels(size: tuple[int, int], most: int | None) -> tuple[int, int]:
    """Scale an image size down to at most `most` pixels, keeping its proportions.

    Args:
        size: width and height.
        most: maximum pixels; None: no maximum.

    Source: diffusers pipelines/flux2/image_processor.py, _resize_to_target_area.
    """
    width, height = size
    if most is None or width * height <= most:
        return size
    scale = math.sqrt(most / (width * height))
    return int(width * scale), int(height * scale)


def size_of_area(size: tuple[int, int], area: int) -> tuple[int, int]:
    """Scale an image size to about that area, keeping its proportions; a side can round to 0.

    Args:
        size: width and height.

    Source: diffusers pipeline_qwenimage_edit.py, calculate_dimensions.
    """
    ratio = size[0] / size[1]
    width = math.sqrt(area * ratio)
    return _rounded(width), _rounded(width / ratio)


def longest_side(pixels: int, ratio: int, multiple: int) -> int:
    """Return the longest possible side of an image with that many pixels.

    Args:
        ratio: maximum ratio of the sides.
        multiple: unit of the sides in pixels.
    """
    return math.isqrt(pixels * ratio) // multiple * multiple


def _rounded(side: float) -> int:
    return round(side / MULTIPLE_PX) * MULTIPLE_PX
