"""Images and videos of a request to Animate as pixels.

Source: diffusers pipeline_wan_animate.py and its image_processor.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from models.interface.images import open_image, pixels_of
from models.interface.pipeline import RequestError
from models.spec.frame_scaling import FrameScaling
from models.vision.preprocess import ClipPreprocessor
from models.wan.request import WanRequest
from models.wan.sent_videos import is_given, video_frames

BACKGROUND = "background"
POSE_VIDEO, FACE_VIDEO, MASK_VIDEO = "pose_video", "face_video", "mask_video"
BACKGROUND_VIDEO = f"{BACKGROUND}_video"
CHARACTER = "image"
FRAMES = FrameScaling(fit="stretch")
"""Scaling of every video's frames."""


def animate_inputs(
    request: WanRequest, images: Mapping[str, bytes], face_px: int, preprocessor: ClipPreprocessor
) -> dict[str, np.ndarray]:
    """Return the pixels of a request's images and videos.

    Character [height, width, 3] in [-1, 1], clip_pixels [side, side, 3]; a byte each pose_frames
    [frames, height, width, 3], face_frames [frames, face_px, face_px, 3] and, of a character that
    is replaced, background_frames and background_masks [frames, height, width].

    Raises: RequestError: some are missing, do not go together, or cannot be read.
    """
    if CHARACTER not in images:
        raise RequestError(CHARACTER, "is needed: this model animates a character")
    for name in (POSE_VIDEO, FACE_VIDEO):
        if not is_given(name, images):
            raise RequestError(name, "is needed: this model animates a character by it")
    if is_given(MASK_VIDEO, images) != is_given(BACKGROUND_VIDEO, images):
        missing = MASK_VIDEO if is_given(BACKGROUND_VIDEO, images) else BACKGROUND_VIDEO
        raise RequestError(missing, "is needed: a background and its mask go together")
    size, picture = (request.width, request.height), open_image(images[CHARACTER], CHARACTER)

    def read(name: str, size: tuple[int, int], mode: str = "RGB") -> np.ndarray:
        return _read(video_frames(images, name), name, size, mode, request.num_frames)

    inputs = {
        "character": pixels_of(on_black(picture, size)),
        "clip_pixels": preprocessor(picture),
        "pose_frames": read(POSE_VIDEO, size),
        "face_frames": read(FACE_VIDEO, (face_px, face_px)),
    }
    if is_given(BACKGROUND_VIDEO, images):
        inputs[f"{BACKGROUND}_frames"] = read(BACKGROUND_VIDEO, size)
        inputs[f"{BACKGROUND}_masks"] = read(MASK_VIDEO, size, "L")
    return inputs


def on_black(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Fit a whole picture into a size, on black."""
    width, height = size
    wide = width / height < picture.width / picture.height
    sides = (
        width if wide else picture.width * height // picture.height,
        picture.height * width // picture.width if wide else height,
    )
    if not all(sides):
        raise RequestError(CHARACTER, f"is too narrow: {sides[0]} x {sides[1]} pixels of the video")
    canvas = Image.new("RGB", size)
    resized = picture.resize(sides, Image.Resampling.LANCZOS)  # as it comes to be in diffusers
    canvas.paste(resized, (width // 2 - sides[0] // 2, height // 2 - sides[1] // 2))
    return canvas


def _read(
    pictures: Iterable[Image.Image], name: str, size: tuple[int, int], mode: str, frames: int
) -> UInt8[np.ndarray, "frames height width *colours"]:
    """Resize a video's frames, whatever their proportions; a short one runs back and forth.

    Raises: RequestError: more frames than the video will have.
    """
    read = [np.asarray(FRAMES.scaled(picture, size).convert(mode)) for picture in pictures]
    if len(read) > frames:
        raise RequestError("num_frames", f"must be {len(read)} at least: {name} has so many")
    return np.stack([read[place] for place in back_and_forth(len(read), frames)])


def back_and_forth(count: int, frames: int) -> list[int]:
    """Return which of `count` frames follow each other: 0, 1, 2, 1, 0, 1 and so on."""
    period = max(1, 2 * (count - 1))
    return [min(at % period, period - at % period) for at in range(frames)]
