"""A finished image or video → its files, each encoded when it is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from service.jobs.model.job import MadeBy, Output
from service.recipes.recipe import Recipe
from workers.media import image, video
from workers.media.marking import Marking
from workers.media.sheets import sheets_of
from workers.media.sound import CODECS, Sound

DEFAULT_FPS = 16.0
"""Frame rate of a video whose model names none; what Wan was trained on."""
PREVIEW_FORMAT, PREVIEW_QUALITY = "webp", 75
PLAIN_MARKING = Marking()


@dataclass(frozen=True)
class File:
    """An encoded output."""

    data: bytes
    content_type: str
    width: int
    height: int
    pixels_sha256: str
    num_frames: int | None = None
    """Number of frames of a video, as the next two are."""
    fps: float | None = None
    duration_s: float | None = None
    sound_hz: int | None = None
    """Samples a second of a video's sound; None: it is silent."""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """Small images of a video by name (`media.sheets`)."""

    def described(self, index: int, key: str, seed: int, made_by: MadeBy | None) -> Output:
        """Return what a job's record says of the file under that key."""
        return Output(
            index=index,
            key=key,
            content_type=self.content_type,
            width=self.width,
            height=self.height,
            seed=seed,
            sha256=hashlib.sha256(self.data).hexdigest(),
            pixels_sha256=self.pixels_sha256,
            bytes=len(self.data),
            beside_bytes=sum(map(len, self.beside.values())),
            num_frames=self.num_frames,
            fps=self.fps,
            duration_s=self.duration_s,
            sound_hz=self.sound_hz,
            made_by=made_by,
        )


def files(
    pixels: np.ndarray,
    request: Mapping[str, Any],
    recipe: Recipe | None = None,
    marking: Marking = PLAIN_MARKING,
    sound: Sound | None = None,
) -> Iterator[File]:
    """Yield the files of an image or video; of image formats, one file a frame.

    Args:
        pixels: uint8 [height, width, 3] or [frames, height, width, 3].
        request: resolved; `output` and `fps` are read.
        recipe: what the files say of themselves; None: nothing.
        marking: how they say it.
        sound: of a video; formats that carry none leave it out.
    """
    output = request.get("output", {})
    format, quality = output.get("format", "png"), output.get("quality")
    if pixels.ndim == 4 and format in video.CONTENT_TYPES:
        heard = sound if format in CODECS else None
        clip = _clip(pixels, format, request.get("fps") or DEFAULT_FPS, quality, heard)
        data = clip.data
        if recipe:
            data = marking.mark(data, clip.content_type, recipe, request)
        yield replace(clip, data=data)
        return
    content_type = image.CONTENT_TYPES[format]
    for number, picture in enumerate(pixels if pixels.ndim == 4 else [pixels]):
        height, width = picture.shape[:2]
        data = image.encode(picture, format, quality)
        if recipe:
            said = recipe.of_frame(number) if pixels.ndim == 4 else recipe
            data = marking.mark(data, content_type, said, request)
        yield File(data, content_type, width, height, _digest(picture))


def count(pixels: np.ndarray, request: Mapping[str, Any]) -> int:
    """Return the number of those files."""
    format = request.get("output", {}).get("format", "png")
    return 1 if pixels.ndim == 3 or format in video.CONTENT_TYPES else len(pixels)


def _clip(
    frames: np.ndarray, format: str, fps: float, quality: int | None, sound: Sound | None
) -> File:
    data = video.encode_video(frames, format, fps, quality, sound)
    num_frames, height, width, _ = frames.shape
    return File(
        data,
        video.CONTENT_TYPES[format],
        width,
        height,
        _digest(frames),
        num_frames=num_frames,
        fps=fps,
        duration_s=num_frames / fps,
        sound_hz=None if sound is None else sound.rate_hz,
        beside=sheets_of(frames),
    )


def _digest(pixels: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()


def preview(pixels: np.ndarray, request: Mapping[str, Any]) -> str:
    """A small image, or a video that lasts as long as the whole one, as a data URI."""
    if pixels.ndim == 3:
        data = image.encode(pixels, PREVIEW_FORMAT, PREVIEW_QUALITY)
    else:
        fps = preview_fps(pixels, request)
        data = video.encode_video(pixels, PREVIEW_FORMAT, fps, PREVIEW_QUALITY)
    return image.data_uri(data, image.CONTENT_TYPES[PREVIEW_FORMAT])


def preview_fps(pixels: np.ndarray, request: Mapping[str, Any]) -> float:
    """Return the rate at which a preview of fewer frames lasts as long as the whole video."""
    num_frames = request.get("num_frames") or len(pixels)
    return float((request.get("fps") or DEFAULT_FPS) * len(pixels) / num_frames)
