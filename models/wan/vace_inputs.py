"""Preprocessing of VACE's control frames, masks and reference images.

Source: diffusers pipeline_wan_vace.py, preprocess_conditions. Frames are scaled to cover the
video's size, and the excess is cropped on both sides. This follows the authors'
VaceVideoProcessor.resize_crop, with diffusers' arithmetic (VaeImageProcessor, resize_mode "crop").
diffusers' pipeline accepts only frames of the video's size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from models.interface.images import pixels_of
from models.media.scaling import FrameScaling
from models.spec.request import RequestError

FRAMES, MASKS = FrameScaling(fit="cover"), FrameScaling(fit="cover", is_grey=True)
"""Scaling of a control video's frames, and of its masks."""
GREY, GENERATED, PRESERVED = 128, 255, 0
"""Level of missing frames, and mask levels of generated and of preserved pixels."""


class ControlFrames(NamedTuple):
    """Frames and masks of a control video, as bytes."""

    frames: UInt8[np.ndarray, "frames height width 3"]
    masks: UInt8[np.ndarray, "frames height width"]


def read_frames(
    images: Iterable[Image.Image], masks: Iterable[Image.Image], size: tuple[int, int]
) -> ControlFrames:
    """Resize a control video's frames and masks.

    Args:
        masks: as many as frames; or one for all frames; or none, to generate all pixels.
        size: width and height in pixels.

    Raises: RequestError: another number of masks.
    """
    width, height = size
    frames = np.stack([np.asarray(FRAMES.scaled(image, size)) for image in images])
    sent = [np.asarray(MASKS.scaled(mask, size)) for mask in masks]
    levels = np.stack(sent) if sent else np.full((1, height, width), GENERATED, np.uint8)
    if len(levels) not in (1, len(frames)):
        raise RequestError("mask_video", f"has {len(levels)} frames, the video {len(frames)}")
    return ControlFrames(frames, np.broadcast_to(levels, frames.shape[:3]))


def extended(
    frames_given: ControlFrames, frames: int, last: ControlFrames | None = None
) -> ControlFrames:
    """Insert grey frames to be generated after the given frames, and before `last`.

    Raises: RequestError: more frames than the output video has.
    """
    parts = [frames_given] if last is None else [frames_given, last]
    missing = frames - sum(len(part.frames) for part in parts)
    if missing < 0:
        raise RequestError(
            "num_frames", f"must be at least {frames - missing}, the number of input frames"
        )
    shape = (missing, *frames_given.frames.shape[1:])
    grey = ControlFrames(np.full(shape, GREY, np.uint8), np.full(shape[:3], GENERATED, np.uint8))
    parts.insert(1, grey)
    return ControlFrames(*map(np.concatenate, zip(*parts, strict=True)))


def preserved_frame(image: Image.Image, size: tuple[int, int]) -> ControlFrames:
    """Return a preserved frame: the first or the last of a video to extend."""
    frame = np.asarray(FRAMES.scaled(image, size))[None]
    return ControlFrames(frame, np.full(frame.shape[:3], PRESERVED, np.uint8))


def read_reference(
    image: Image.Image, size: tuple[int, int], multiple: int, field: str
) -> Float32[np.ndarray, "height width 3"]:
    """Fit a reference image into a size, with white borders; return pixels in [-1, 1].

    Args:
        size: width and height in pixels.
        multiple: number of pixels that the image's sides are first rounded down to a multiple of.

    Raises: RequestError: a side is shorter than `multiple`, or vanishes after scaling.
    """
    sides = image.width // multiple * multiple, image.height // multiple * multiple
    if not all(sides):
        raise RequestError(field, f"must have {multiple} pixels on each side at least")
    pixels = pixels_of(image.resize(sides, Image.Resampling.LANCZOS))
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
    """Resize one axis by linear interpolation between pixel centres, without antialiasing."""
    last = pixels.shape[axis] - 1
    places = np.clip((np.arange(size) + 0.5) * ((last + 1) / size) - 0.5, 0, last)
    below = places.astype(int)
    between = (places - below).astype(np.float32).reshape(-1, *(1,) * (2 - axis))
    low, high = (pixels.take(np.minimum(at, last), axis) for at in (below, below + 1))
    resized: np.ndarray = low * (1 - between) + high * between
    return resized
