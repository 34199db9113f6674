"""Output files of a finished image or video: encoded on demand, and marked by the settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from models.media.image_files import OPAQUE
from service.jobs.model.job import MadeBy, Output
from service.recipes.files import embed
from service.recipes.recipe import Recipe
from service.recipes.xmp import source_of
from service.settings.output import OutputSettings
from workers.media import image, video
from workers.media.content_credentials import Sign, signer_of
from workers.media.image import sheets_of
from workers.media.video import SOUND_CODECS, Sound

DEFAULT_FPS = 16.0
"""Frame rate of a video whose model names none; Wan was trained with it."""
PREVIEW_FORMAT, PREVIEW_QUALITY = "webp", 75


@dataclass(frozen=True)
class Marking:
    """Marking of output files: embeds recipes, and signs with Content Credentials."""

    metadata: bool = True
    prompts: bool = True
    sign: Sign | None = None

    @classmethod
    def of_settings(cls, settings: OutputSettings) -> Marking:
        """Return the marking of output files by the settings. Raises: ConfigError: unusable key."""
        return cls(settings.metadata, settings.prompts, signer_of(settings))

    def wants_recipe(self, request: Mapping[str, Any]) -> bool:
        """Return whether a resolved request's files contain their recipe."""
        return self.metadata and bool(request.get("output", {}).get("metadata", True))

    def mark(
        self, data: bytes, content_type: str, recipe: Recipe, request: Mapping[str, Any]
    ) -> bytes:
        """Return a file with its recipe, if enabled, and signed, if a key is configured."""
        if self.wants_recipe(request):
            embedded = recipe if self.prompts else recipe.without_prompts()
            data = embed(data, content_type, embedded)
        return self.sign(data, content_type, source_of(recipe)) if self.sign else data


PLAIN_MARKING = Marking()


@dataclass(frozen=True)
class File:
    """Encoded output file, with its size and digest."""

    data: bytes
    content_type: str
    width: int
    height: int
    pixels_sha256: str
    num_frames: int | None = None
    """Number of frames; None for images, like the next two fields."""
    fps: float | None = None
    duration_s: float | None = None
    sound_hz: int | None = None
    """Sample rate of a video's sound; None: silent."""
    small_images: Mapping[str, bytes] = field(default_factory=dict)
    """Small images of a video by name (`sheets_of`)."""

    def described(self, index: int, key: str, seed: int, made_by: MadeBy | None) -> Output:
        """Return the file's entry in the job's record, stored under that key."""
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
            beside_bytes=sum(map(len, self.small_images.values())),
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
    """Yield the files of an image or video; in image formats, one file per frame.

    Args:
        pixels: uint8 [height, width, 3], of a transparent image [height, width, 4], or [frames,
            height, width, 3].
        request: resolved request; `output` and `fps` are read.
        recipe: recipe to embed; None: none.
        marking: embeds the recipe and signs.
        sound: sound of a video; ignored by formats without sound.
    """
    output = request.get("output", {})
    format, quality = output.get("format", "png"), output.get("quality")
    if pixels.ndim == 4 and format in video.CONTENT_TYPES:
        track = sound if format in SOUND_CODECS else None
        clip = _clip(pixels, format, request.get("fps") or DEFAULT_FPS, quality, track)
        data = clip.data
        if recipe:
            data = marking.mark(data, clip.content_type, recipe, request)
        yield replace(clip, data=data)
        return
    content_type = image.CONTENT_TYPES[format]
    for number, frame in enumerate(pixels if pixels.ndim == 4 else [pixels]):
        height, width = frame.shape[:2]
        data = image.encode(frame, format, quality)
        if recipe:
            frame_recipe = recipe.of_frame(number) if pixels.ndim == 4 else recipe
            data = marking.mark(data, content_type, frame_recipe, request)
        yield File(data, content_type, width, height, _digest(frame))


def count(pixels: np.ndarray, request: Mapping[str, Any]) -> int:
    """Return the number of output files of an image or video in the request's format."""
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
        small_images=sheets_of(frames),
    )


def _digest(pixels: np.ndarray) -> str:
    """Return the digest of an output's pixels; an opaque alpha channel is ignored."""
    if pixels.shape[-1] == len("RGBA") and (pixels[..., 3] == OPAQUE).all():
        pixels = pixels[..., :3]
    return hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()


def preview(pixels: np.ndarray, request: Mapping[str, Any]) -> str:
    """Return a data URI of a small image, or of a video as long as the full one."""
    if pixels.ndim == 3:
        data = image.encode(pixels, PREVIEW_FORMAT, PREVIEW_QUALITY)
    else:
        fps = preview_fps(pixels, request)
        data = video.encode_video(pixels, PREVIEW_FORMAT, fps, PREVIEW_QUALITY)
    return image.data_uri(data, image.CONTENT_TYPES[PREVIEW_FORMAT])


def preview_fps(pixels: np.ndarray, request: Mapping[str, Any]) -> float:
    """Return the frame rate at which a preview with fewer frames lasts as long as the video."""
    num_frames = request.get("num_frames") or len(pixels)
    return float((request.get("fps") or DEFAULT_FPS) * len(pixels) / num_frames)
