"""Pixel digests and comparison of files, in the processes that check images.

Needs only Pillow; FFmpeg is loaded when a video is read.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import zip_longest
from typing import Any

from PIL import Image, ImageChops, ImageSequence

from models.media import image_files, video_files
from models.media.image_files import ImageFileError
from service.confined.file_packing import packed, unpacked

WHITE = 255
LEVELS = 256
GIF = b"GIF8"


@dataclass(frozen=True)
class DecodedFile:
    """Size and pixel digest of one file."""

    width: int
    height: int
    frames: int
    pixels_sha256: str
    """SHA-256 of its pixels, as in outputs; includes alpha if any pixel is transparent."""

    @property
    def size(self) -> tuple[int, int, int]:
        """Width, height and number of frames, for comparing sizes."""
        return self.width, self.height, self.frames


@dataclass(frozen=True)
class Difference:
    """Pixel difference of two files of one size."""

    max_levels: int
    """Maximum difference of a subpixel, in levels of 255."""
    pixels: int
    """Number of differing pixels."""
    of_pixels: int
    """Total number of pixels."""
    psnr_db: float | None
    """PSNR over all pixels; None if they are equal."""


@dataclass(frozen=True)
class Comparison:
    """One or two decoded files, and their difference."""

    files: tuple[DecodedFile, ...]
    difference: Difference | None = None
    """Difference of two files; None for one file, or if sizes differ."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Comparison:
        """Build the pixel comparison from the result of `compare`."""
        difference = answer["difference"]
        files = tuple(DecodedFile(**shown) for shown in answer["files"])
        return cls(files, difference and Difference(**difference))


def pack_compare(files: Sequence[bytes], clip_pixels: int) -> bytes:
    """Encode one or two files as input of `compare`.

    Args:
        clip_pixels: maximum pixels of a file, over all its frames.
    """
    return packed({"clip_pixels": clip_pixels}, *files)


def compare(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Decode one or two files and return the fields of a `Comparison`. Raises: ImageFileError.

    Args:
        max_pixels: limit per frame.
    """
    about, files = unpacked(data)
    shows = [_Reading() for _ in files]
    sums, same_size = _Sums(), True
    read = (
        reading.frames(file, max_pixels, about["clip_pixels"])
        for reading, file in zip(shows, files, strict=True)
    )
    for frames in zip_longest(*read):
        same_size = same_size and len({frame and frame.size for frame in frames}) == 1
        if same_size and len(frames) == 2:
            sums.add(*frames)
    is_pair = same_size and len(files) == 2
    return {
        "files": [asdict(reading.shown()) for reading in shows],
        "difference": asdict(sums.difference()) if is_pair else None,
    }


@dataclass
class _Reading:
    """Pixel digest of a file, accumulated frame by frame."""

    size: tuple[int, int] = (0, 0)
    count: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def frames(self, data: bytes, max_pixels: int, clip_pixels: int) -> Iterator[Image.Image]:
        """Decode and digest a file, yielding its frames. Raises: ImageFileError."""
        for frame in frames_of(data, max_pixels):
            self.size, self.count = frame.size, self.count + 1
            if self.count * frame.width * frame.height > max(clip_pixels, max_pixels):
                raise ImageFileError(f"has more than {clip_pixels} pixels in total")
            self.digest.update(frame.tobytes())
            yield frame

    def shown(self) -> DecodedFile:
        """Return the file's size and digest, after all frames are read."""
        return DecodedFile(*self.size, self.count, self.digest.hexdigest())


@dataclass
class _Sums:
    """Sums of pixel differences over the frames of two files."""

    max_levels: int = 0
    pixels: int = 0
    of_pixels: int = 0
    squares: int = 0
    values: int = 0

    def add(self, first: Image.Image, other: Image.Image) -> None:
        """Add a pair of frames of equal size. If either is transparent, alpha counts, too."""
        if first.mode != other.mode:
            first, other = first.convert("RGBA"), other.convert("RGBA")
        gap = ImageChops.difference(first, other)
        for at, count in enumerate(gap.histogram()):
            level = at % LEVELS
            self.squares += level**2 * count
            self.values += count
            self.max_levels = max(self.max_levels, level if count else 0)
        same = reduce(ImageChops.lighter, gap.split()).histogram()[0]
        self.pixels += gap.width * gap.height - same
        self.of_pixels += gap.width * gap.height

    def difference(self) -> Difference:
        """Compute the pixel difference over all frames."""
        psnr = 10 * math.log10(WHITE**2 * self.values / self.squares) if self.squares else None
        return Difference(self.max_levels, self.pixels, self.of_pixels, psnr)


def frames_of(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Yield the decoded frames of an image or video, in RGB, or RGBA if transparent.

    Raises: ImageFileError.
    """
    if data.startswith(GIF):
        yield from _of_gif(data, max_pixels)
    elif data.startswith(video_files.IMAGES):
        yield _opaque(image_files.load(data, max_pixels))
    elif video_files.is_video(data):
        yield from video_files.frames(data, max_pixels)
    else:
        raise ImageFileError("is not a PNG, JPEG, WebP, GIF, MP4 or WebM file")


def _of_gif(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    with (
        image_files.converting_errors(max_pixels),
        Image.open(io.BytesIO(data), formats=("GIF",)) as image,
    ):
        if image.width * image.height > max_pixels:
            message = f"has {image.width} x {image.height} pixels; {max_pixels} are allowed"
            raise ImageFileError(message)
        for frame in ImageSequence.Iterator(image):
            yield _opaque(frame.convert("RGBA"))


def _opaque(image: Image.Image) -> Image.Image:
    """Drop an image's alpha channel if it is fully opaque."""
    if image.mode == "RGBA" and image.getchannel("A").getextrema() == (WHITE, WHITE):
        return image.convert("RGB")
    return image
