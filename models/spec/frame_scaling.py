"""Scaling of input video frames to the size that a model reads. No JAX.

A worker decodes and scales frames in a separate process, which holds one frame at a time. Models
call the same functions, which return a frame unchanged if it already has the size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PIL import Image


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
        """Return the frame size for an output video of that width and height."""
        return (width, height) if self.side_px is None else (self.side_px, self.side_px)

    def scaled(self, frame: Image.Image, size: tuple[int, int]) -> Image.Image:
        """Scale a frame to that size."""
        image = frame.convert("L") if self.is_grey else frame
        return covering(image, size) if self.fit == "cover" else stretched(image, size)


def covering(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize to cover the size and crop to the centre, preserving proportions.

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
