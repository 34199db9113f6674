"""Video files of clients: which ones are read, and the frames in them.

Front ends check a file by the very function that pools decode it with, as they do image files.
Nothing here needs JAX; FFmpeg is loaded when a file is read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from models.spec import image_files
from models.spec.image_files import ImageFile, ImageFileError


class Container(NamedTuple):
    """Container format that is read: FFmpeg's name of it, and its media type."""

    demuxer: str
    media_type: str


MP4, WEBM = Container("mp4", "video/mp4"), Container("matroska", "video/webm")
CODECS = frozenset({"h264", "hevc", "mpeg4", "vp8", "vp9", "libvpx-vp9", "libdav1d", "av1"})
"""Decoders that a file may want, by FFmpeg's names."""
IMAGES = (b"\x89PNG", b"\xff\xd8", b"RIFF")
"""First bytes of the images that count as a video of one frame."""
EDGES = 2**18
"""Pixels that decoders lay around a small frame, at most."""
FRAME_PIXELS = 4096 * 2160
"""Pixels of a frame that may be sent, by default: decoders keep up to 17 of them."""
OPTIONS: Mapping[str, str] = {"protocol_whitelist": "", "enable_drefs": "0"}
"""Options of demuxers: nothing but the file itself is opened, whatever it names."""


@dataclass(frozen=True)
class VideoBounds:
    """Bounds of one video."""

    max_frames: int
    max_pixels: int
    """Maximum pixels of all frames together."""
    max_frame_pixels: int = FRAME_PIXELS


def check(data: bytes, bounds: VideoBounds) -> ImageFile:
    """Check a file by decoding it, frame by frame: a video, or an image as one of one frame.

    Raises: ImageFileError.
    """
    container = _container(data)
    if container is None:
        if not data.startswith(IMAGES):
            raise ImageFileError("is no video in MP4 or WebM, and no PNG, JPEG or WebP")
        return image_files.check(data, bounds.max_frame_pixels)
    count, width, height = 0, 0, 0
    for frame in frames(data, bounds.max_frame_pixels):
        count, (width, height) = count + 1, frame.size
        if count > bounds.max_frames:
            said = f"has more than {bounds.max_frames} frames, which is num_frames"
            raise ImageFileError(said)
        if count * width * height > bounds.max_pixels:
            said = f"has more than {bounds.max_pixels} pixels in all; send fewer or smaller frames"
            raise ImageFileError(said)
    return ImageFile(container.media_type, width, height, count)


def frames(
    data: bytes, max_pixels: int | None = None, is_mask: bool = False
) -> Iterator[Image.Image]:
    """Yield a file's frames: upright, in RGB; an image is one of one frame.

    Args:
        max_pixels: of one frame; None: it has been checked.

    Raises: ImageFileError.
    """
    container = _container(data)
    if container is None:
        yield image_files.decode(data, is_mask)
        return
    import av

    try:
        yield from _decoded(data, container.demuxer, max_pixels)
    except ImageFileError:
        raise
    except (MemoryError, av.error.MemoryError):
        raise MemoryError from None
    except Exception as error:  # decoders raise what they like on a hostile file
        raise ImageFileError(f"is broken and cannot be decoded ({type(error).__name__})") from error


def is_video(data: bytes) -> bool:
    """Return whether a file begins as one of the containers that are read."""
    return _container(data) is not None


def _container(data: bytes) -> Container | None:
    """Return the container that a file begins as; None: neither of those."""
    if data[4:8] == b"ftyp":
        return MP4
    return WEBM if data.startswith(b"\x1a\x45\xdf\xa3") else None


def _decoded(data: bytes, demuxer: str, max_pixels: int | None) -> Iterator[Image.Image]:
    """Raises: ImageFileError, and what FFmpeg raises."""
    import av

    with av.open(io.BytesIO(data), "r", format=demuxer, options=dict(OPTIONS)) as file:
        if not file.streams.video:
            raise ImageFileError("has no video in it")
        stream = file.streams.video[0]
        _prepare(stream.codec_context, max_pixels)
        first: tuple[int, int] | None = None
        for frame in file.decode(stream):
            if max_pixels is not None:
                _check_size(frame.width, frame.height, max_pixels)
            image = _upright(frame)
            first = first or image.size
            if image.size != first:
                raise ImageFileError("changes its size; send frames of one size")
            yield image
    if first is None:
        raise ImageFileError("has no frames in it")


def _prepare(context: Any, max_pixels: int | None) -> None:
    """Set a decoder up. Raises: ImageFileError: it is none that is served, or too large."""
    if context.name not in CODECS:
        said = f"is encoded as {context.name}; send H.264, H.265, VP8, VP9 or AV1"
        raise ImageFileError(said)
    if max_pixels is not None:
        _check_size(context.width, context.height, max_pixels)
        context.options = {"max_pixels": f"{2 * max_pixels + EDGES}"}
    context.thread_type, context.thread_count = "NONE", 1


def _check_size(width: int, height: int, max_pixels: int) -> None:
    """Raises: ImageFileError: a frame has more pixels."""
    if width * height > max_pixels:
        said = f"has {width} x {height} pixels a frame; {max_pixels} are allowed"
        raise ImageFileError(said)


def _upright(frame: Any) -> Image.Image:
    """Return a frame as players show it."""
    from av.video.reformatter import Interpolation

    exactly = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
    image: Image.Image = frame.to_image(interpolation=exactly)
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
