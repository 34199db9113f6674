"""Pictures of a request to VACE as its pixels: frames with masks, and references.

Source: diffusers pipeline_wan_vace.py, preprocess_conditions. Frames keep their proportions: they
cover the video's size, and what juts out is cut off on both sides, as in the authors'
VaceVideoProcessor.resize_crop; in diffusers' arithmetic (VaeImageProcessor, resize_mode "crop"),
whose pipeline takes only frames that come in the video's size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from models.interface.images import pixels_of
from models.interface.pipeline import RequestError
from models.spec.frame_scaling import FrameScaling

FRAMES, MASKS = FrameScaling(fit="cover"), FrameScaling(fit="cover", is_grey=True)
"""Scaling of a control video's frames, and of its masks."""
GREY, ANEW, KEPT = 128, 255, 0
"""Level of a frame that is not given, and levels of a mask: drawn anew, or kept as given."""


class ControlFrames(NamedTuple):
    """Pixels of a control video and its masks, a byte each."""

    frames: UInt8[np.ndarray, "frames height width 3"]
    masks: UInt8[np.ndarray, "frames height width"]


def read_frames(
    pictures: Iterable[Image.Image], masks: Iterable[Image.Image], size: tuple[int, int]
) -> ControlFrames:
    """Resize a control video's frames and masks.

    Args:
        masks: as many as frames; or one, which is every frame's; or none: all is drawn anew.
        size: width and height in pixels.

    Raises: RequestError: another number of masks.
    """
    width, height = size
    frames = np.stack([np.asarray(FRAMES.scaled(picture, size)) for picture in pictures])
    sent = [np.asarray(MASKS.scaled(mask, size)) for mask in masks]
    levels = np.stack(sent) if sent else np.full((1, height, width), ANEW, np.uint8)
    if len(levels) not in (1, len(frames)):
        raise RequestError("mask_video", f"has {len(levels)} frames, the video {len(frames)}")
    return ControlFrames(frames, np.broadcast_to(levels, frames.shape[:3]))


def extended(given: ControlFrames, frames: int, last: ControlFrames | None = None) -> ControlFrames:
    """Put grey frames, to be drawn anew, behind what is given, and before `last`.

    Raises: RequestError: more frames than the video will have.
    """
    parts = [given] if last is None else [given, last]
    missing = frames - sum(len(part.frames) for part in parts)
    if missing < 0:
        raise RequestError("num_frames", f"must be {frames - missing} at least: so many are given")
    shape = (missing, *given.frames.shape[1:])
    grey = ControlFrames(np.full(shape, GREY, np.uint8), np.full(shape[:3], ANEW, np.uint8))
    parts.insert(1, grey)
    return ControlFrames(*map(np.concatenate, zip(*parts, strict=True)))


def kept(picture: Image.Image, size: tuple[int, int]) -> ControlFrames:
    """Return a frame that stays as it is: the first or the last of a video to extend."""
    frame = np.asarray(FRAMES.scaled(picture, size))[None]
    return ControlFrames(frame, np.full(frame.shape[:3], KEPT, np.uint8))


def read_reference(
    picture: Image.Image, size: tuple[int, int], multiple: int, field: str
) -> Float32[np.ndarray, "height width 3"]:
    """Fit a whole picture into a size, on white: pixels in [-1, 1].

    Args:
        size: width and height in pixels.
        multiple: of pixels, which its sides are first cut down to.

    Raises: RequestError: it has fewer pixels than that on a side, or is too narrow to be seen.
    """
    sides = picture.width // multiple * multiple, picture.height // multiple * multiple
    if not all(sides):
        raise RequestError(field, f"must have {multiple} pixels on each side at least")
    pixels = pixels_of(picture.resize(sides, Image.Resampling.LANCZOS))
    scale = min(size[1] / sides[1], size[0] / sides[0])
    width, height = (int(side * scale) for side in sides)
    if not (width and height):
        raise RequestError(field, f"is too narrow: {width} x {height} pixels of the video")
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    canvas = np.ones((size[1], size[0], 3), np.float32)
    resized = _interpolated(_interpolated(pixels, height, 0), width, 1)
    canvas[top : top + height, left : left + width] = resized
    return canvas


def _interpolated(pixels: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Interpolate linearly between pixel centres, without averaging where it gets smaller."""
    last = pixels.shape[axis] - 1
    places = np.clip((np.arange(size) + 0.5) * ((last + 1) / size) - 0.5, 0, last)
    below = places.astype(int)
    between = (places - below).astype(np.float32).reshape(-1, *(1,) * (2 - axis))
    low, high = (pixels.take(np.minimum(at, last), axis) for at in (below, below + 1))
    return low * (1 - between) + high * between
