"""Video files of clients: validation and decoding, without JAX.

Front ends validate a file with the same function that workers decode it with. FFmpeg is imported
when a file is read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from models.media import image_files
from models.media.image_files import ImageFile, ImageFileError


class Container(NamedTuple):
    """Accepted video container: FFmpeg's demuxer name, and the media type."""

    demuxer: str
    media_type: str


MP4, WEBM = Container("mp4", "video/mp4"), Container("matroska", "video/webm")
CODECS = frozenset(
    {"h264", "hevc", "mpeg4", "vp8", "vp9", "libvpx", "libvpx-vp9", "libdav1d", "av1"}
)
"""Accepted decoders, by FFmpeg's names."""
IMAGES = (b"\x89PNG", b"\xff\xd8", b"RIFF")
"""First bytes of the image formats that count as a video of one frame."""
EDGES = 2**18
"""Maximum padding pixels that decoders add around a small frame."""
FRAME_PIXELS = 4096 * 2160
"""Default maximum pixels of a frame; decoders hold up to 17 frames."""
ALPHA_DECODERS: Mapping[str, str] = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""Decoders that read a WebM's alpha channel, which FFmpeg's own decoders of these codecs omit."""
OPTIONS: Mapping[str, str] = {
    "protocol_whitelist": "",
    "enable_drefs": "0",
    "codec_whitelist": ",".join(sorted(CODECS)),
}
"""Options of demuxers. They prevent a file from opening other files, URLs and decoders: demuxers
decode some packets while they probe a file."""


@dataclass(frozen=True)
class VideoBounds:
    """Limits for one input video: number of frames, and pixels."""

    max_frames: int
    max_pixels: int
    """Maximum pixels of all frames together."""
    max_frame_pixels: int = FRAME_PIXELS


def check(data: bytes, bounds: VideoBounds) -> ImageFile:
    """Validate a video, or an image as a single frame, by decoding the file frame by frame.

    Raises: ImageFileError.
    """
    container = _container(data)
    if container is None:
        if not data.startswith(IMAGES):
            raise ImageFileError("is neither an MP4 or WebM video nor a PNG, JPEG or WebP image")
        return image_files.check(data, bounds.max_frame_pixels)
    count, width, height, is_transparent = 0, 0, 0, False
    for frame in _images(data, container.demuxer, bounds.max_frame_pixels):
        count, (width, height) = count + 1, frame.size
        is_transparent = is_transparent or image_files.has_transparent_pixels(frame)
        if count > bounds.max_frames:
            message = f"has more than {bounds.max_frames} frames, which is num_frames"
            raise ImageFileError(message)
        if count * width * height > bounds.max_pixels:
            message = (
                f"has more than {bounds.max_pixels} pixels in all; send fewer or smaller frames"
            )
            raise ImageFileError(message)
    return ImageFile(container.media_type, width, height, count, is_transparent)


def frames(
    data: bytes, max_pixels: int | None = None, is_mask: bool = False
) -> Iterator[Image.Image]:
    """Yield the frames of a video or image file, upright and in RGB.

    Transparent pixels are composited on white; those of a mask keep their colours.

    Args:
        max_pixels: of one frame; None: already validated.

    Raises: ImageFileError.
    """
    container = _container(data)
    if container is None:
        yield image_files.decode(data, is_mask)
        return
    for image in _images(data, container.demuxer, max_pixels):
        yield image if image.mode == "RGB" else image_files.in_rgb(image, is_mask)


def _images(data: bytes, demuxer: str, max_pixels: int | None) -> Iterator[Image.Image]:
    """Yield a video's frames, upright, in RGB, or in RGBA if the video has an alpha channel.

    Raises: ImageFileError.
    """
    import av

    try:
        yield from _decoded(data, demuxer, max_pixels)
    except ImageFileError:
        raise
    except (MemoryError, av.error.MemoryError):
        raise MemoryError from None
    except Exception as error:  # decoders raise arbitrary exceptions on hostile files
        raise ImageFileError("is broken and cannot be decoded; encode it again") from error


def is_video(data: bytes) -> bool:
    """Return whether a file begins like one of the accepted video containers."""
    return _container(data) is not None


def _container(data: bytes) -> Container | None:
    """Identify a video's container by its first bytes; None: neither MP4 nor WebM."""
    if data[4:8] == b"ftyp":
        return MP4
    return WEBM if data.startswith(b"\x1a\x45\xdf\xa3") else None


def _decoded(data: bytes, demuxer: str, max_pixels: int | None) -> Iterator[Image.Image]:
    """Yield the frames of a video's first stream.

    Raises: ImageFileError, and FFmpeg's own exceptions.
    """
    import av

    with av.open(io.BytesIO(data), "r", format=demuxer, options=dict(OPTIONS)) as file:
        if not file.streams.video:
            raise ImageFileError("has no video in it")
        stream = file.streams.video[0]
        _prepare(stream.codec_context, max_pixels)
        first: tuple[int, int] | None = None
        for frame in _frames(file, stream, max_pixels):
            if max_pixels is not None:
                _check_size(frame.width, frame.height, max_pixels)
            image = _oriented(frame)
            first = first or image.size
            if image.size != first:
                raise ImageFileError("changes its size; send frames of one size")
            yield image
    if first is None:
        raise ImageFileError("has no frames in it")


def _frames(file: Any, stream: Any, max_pixels: int | None) -> Iterator[Any]:
    """Yield a stream's decoded frames, with the alpha channel if it has one."""
    import av

    name = ALPHA_DECODERS.get(stream.codec_context.name)
    if name is None or stream.metadata.get("alpha_mode") != "1":
        yield from file.decode(stream)
        return
    decoder: Any = av.CodecContext.create(name, "r")
    _prepare(decoder, max_pixels)
    for packet in file.demux(stream):
        yield from decoder.decode(packet)


def _prepare(context: Any, max_pixels: int | None) -> None:
    """Configure a video decoder. Raises: ImageFileError: unsupported codec, or too large."""
    if context.name not in CODECS:
        message = f"is encoded as {context.name}; send H.264, H.265, VP8, VP9 or AV1"
        raise ImageFileError(message)
    if max_pixels is not None:
        _check_size(context.width, context.height, max_pixels)
        context.options = {"max_pixels": f"{2 * max_pixels + EDGES}"}
    context.thread_type, context.thread_count = "NONE", 1


def _check_size(width: int, height: int, max_pixels: int) -> None:
    """Enforce the pixel limit of a video frame. Raises: ImageFileError."""
    if width * height > max_pixels:
        message = f"has {width} x {height} pixels a frame; {max_pixels} are allowed"
        raise ImageFileError(message)


def _oriented(frame: Any) -> Image.Image:
    """Return a video frame rotated as players display it."""
    from av.video.reformatter import Interpolation

    exactly = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
    image: Image.Image
    if any(component.is_alpha for component in frame.format.components):
        image = Image.fromarray(frame.to_ndarray(format="rgba", interpolation=exactly))
    else:
        image = frame.to_image(interpolation=exactly)
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
