"""Preprocessing of an Animate request's images and videos.

Source: diffusers pipeline_wan_animate.py and its image_processor.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from models.interface.images import open_image, pixels_of
from models.media.scaling import FrameScaling
from models.spec.request import RequestError
from models.vision.preprocess import ClipPreprocessor
from models.wan.request import WanRequest
from models.wan.request_videos import is_present, video_frames

BACKGROUND = "background"
POSE_VIDEO, FACE_VIDEO, MASK_VIDEO = "pose_video", "face_video", "mask_video"
BACKGROUND_VIDEO = f"{BACKGROUND}_video"
CHARACTER = "image"
FRAMES = FrameScaling(fit="stretch")
"""Scaling of the frames of Animate's input videos."""


def animate_inputs(
    request: WanRequest, images: Mapping[str, bytes], face_px: int, preprocessor: ClipPreprocessor
) -> dict[str, np.ndarray]:
    """Return the pixels of an Animate request's images and videos.

    Keys: character [height, width, 3] in [-1, 1]; clip_pixels [side, side, 3]; as bytes,
    pose_frames [frames, height, width, 3] and face_frames [frames, face_px, face_px, 3]. Character
    replacement adds background_frames and background_masks [frames, height, width].

    Raises: RequestError: inputs that are missing, inconsistent, or cannot be decoded.
    """
    if CHARACTER not in images:
        raise RequestError(CHARACTER, "is needed: this model animates a character")
    for name in (POSE_VIDEO, FACE_VIDEO):
        if not is_present(name, images):
            raise RequestError(name, "is needed: it controls the motion of the character")
    if is_present(MASK_VIDEO, images) != is_present(BACKGROUND_VIDEO, images):
        missing = MASK_VIDEO if is_present(BACKGROUND_VIDEO, images) else BACKGROUND_VIDEO
        raise RequestError(missing, "is needed: send a background together with its mask")
    size, character = (request.width, request.height), open_image(images[CHARACTER], CHARACTER)

    def read(name: str, size: tuple[int, int], mode: str = "RGB") -> np.ndarray:
        return _read(video_frames(images, name), name, size, mode, request.num_frames)

    inputs = {
        "character": pixels_of(on_black(character, size)),
        "clip_pixels": preprocessor(character),
        "pose_frames": read(POSE_VIDEO, size),
        "face_frames": read(FACE_VIDEO, (face_px, face_px)),
    }
    if is_present(BACKGROUND_VIDEO, images):
        inputs[f"{BACKGROUND}_frames"] = read(BACKGROUND_VIDEO, size)
        inputs[f"{BACKGROUND}_masks"] = read(MASK_VIDEO, size, "L")
    return inputs


def on_black(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Fit an image into a size, with black borders."""
    width, height = size
    is_wide = width / height < image.width / image.height
    sides = (
        width if is_wide else image.width * height // image.height,
        image.height * width // image.width if is_wide else height,
    )
    if not all(sides):
        raise RequestError(CHARACTER, f"is too narrow: {sides[0]} x {sides[1]} pixels of the video")
    canvas = Image.new("RGB", size)
    resized = image.resize(sides, Image.Resampling.LANCZOS)  # the filter that diffusers uses
    canvas.paste(resized, (width // 2 - sides[0] // 2, height // 2 - sides[1] // 2))
    return canvas


def _read(
    images: Iterable[Image.Image], name: str, size: tuple[int, int], mode: str, frames: int
) -> UInt8[np.ndarray, "frames height width *colours"]:
    """Stretch an input video's frames to a size; extend a short video by playing it back and forth.

    Raises: RequestError: more frames than the output video has.
    """
    read = [np.asarray(FRAMES.scaled(image, size).convert(mode)) for image in images]
    if len(read) > frames:
        raise RequestError(
            "num_frames", f"must be at least {len(read)}, the number of frames of {name}"
        )
    return np.stack([read[place] for place in back_and_forth(len(read), frames)])


def back_and_forth(count: int, frames: int) -> list[int]:
    """Return indices of `count` frames played back and forth: 0, 1, 2, 1, 0, 1 and so on."""
    period = max(1, 2 * (count - 1))
    return [min(at % period, period - at % period) for at in range(frames)]
