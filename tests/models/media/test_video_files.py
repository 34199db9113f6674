"""Video files from clients: decoded frames equal those of players, or the file is refused."""

from __future__ import annotations

import av
import numpy as np
import pytest
from PIL import Image

from models.media.image_files import ImageFile, ImageFileError
from models.media.video_files import VideoBounds, check, frames
from tests.hostile_images import (
    HOSTILE_VIDEOS,
    animation,
    larger_than_it_says,
    transparent_video,
    video,
)
from tests.models.media.test_image_files import save
from workers.media.video import encode_video

MAX_PIXELS = 10_000
BOUNDS = VideoBounds(max_frames=9, max_pixels=10**6, max_frame_pixels=MAX_PIXELS)
NEAR = 24
"""Tolerance in levels at a strong edge of half-size colours, at the best quality."""
FLAT = 6
"""Tolerance in levels of a flat area. With a wrong BT.601 conversion it is off by 9 and 17."""


def clip(count: int = 5) -> np.ndarray:
    """Video of rows in two colours that darken with each frame."""
    pixels = np.zeros((count, 48, 80, 3), np.uint8)
    pixels[..., 0], pixels[:, :24, :, 1] = 200, 120
    return pixels - (np.arange(count, dtype=np.uint8) * 20)[:, None, None, None] * (pixels > 0)


@pytest.mark.parametrize("container", ["mp4", "webm"])
def test_frames_have_the_colours_that_were_encoded(container: str) -> None:
    pixels = clip()
    data = encode_video(pixels, container, 16, 100)
    decoded = np.stack([np.asarray(frame) for frame in frames(data)])
    assert decoded.shape == pixels.shape
    error = np.abs(decoded.astype(int) - pixels)
    assert error.max() <= NEAR and max(error[:, 4:20].max(), error[:, 28:].max()) <= FLAT
    assert check(data, BOUNDS) == ImageFile(f"video/{container}", 80, 48, 5)


@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("libx264", "mov"),
        ("libx265", "mp4"),
        ("libsvtav1", "mp4"),
        ("mpeg4", "mp4"),
        ("libvpx", "webm"),
    ],
)
def test_other_codecs_are_read(codec: str, container: str) -> None:
    data = video(5, (64, 64), codec, container)
    assert check(data, BOUNDS).frames == 5
    assert np.abs(np.asarray(next(frames(data))).astype(int) - (0, 128, 128)).max() <= NEAR


@pytest.mark.parametrize("codec", ["libvpx", "libvpx-vp9"])
def test_transparent_pixels_become_white(codec: str) -> None:
    """Masks keep their colours, as images do."""
    data = transparent_video(codec)
    assert check(data, BOUNDS) == ImageFile("video/webm", 64, 48, 2, is_transparent=True)
    for lower, is_mask in (((255, 255, 255), False), ((200, 0, 0), True)):
        decoded = [np.asarray(frame, int) for frame in frames(data, MAX_PIXELS, is_mask)]
        assert [frame.shape for frame in decoded] == [(48, 64, 3)] * 2
        assert all(np.abs(frame[:20] - (200, 0, 0)).max() <= FLAT for frame in decoded)
        assert all(np.abs(frame[28:] - lower).max() <= FLAT for frame in decoded)


def test_an_alpha_channel_does_not_evade_the_limit_of_pixels() -> None:
    with pytest.raises(ImageFileError, match="64 x 48 pixels a frame; 3000 are allowed"):
        check(transparent_video(), VideoBounds(9, 10**6, max_frame_pixels=3000))


def test_a_decoder_that_is_not_listed_is_not_opened() -> None:
    """FFmpeg logs decoders that it refuses to open while it probes a file; no unlisted decoder is
    opened."""
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as lines, pytest.raises(ImageFileError, match="encoded as mjpeg"):
            check(HOSTILE_VIDEOS["another codec"](), BOUNDS)
    finally:
        av.logging.set_level(None)
    assert [text for _, _, text in lines if "(mjpeg) not on whitelist" in text], lines


def test_an_image_is_a_video_of_one_frame() -> None:
    data = save(Image.new("RGB", (8, 6), "red"), "PNG")
    assert check(data, BOUNDS) == ImageFile("image/png", 8, 6, 1)
    assert [frame.size for frame in frames(data)] == [(8, 6)]


def test_rotated_video_is_read_upright() -> None:
    """Uses the rotation matrix of phones: 90 degrees clockwise."""
    data = bytearray(encode_video(clip(), "mp4", 16, 100))
    matrix = data.index(b"tkhd") + 4 + 40
    rotation = (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    data[matrix : matrix + 36] = b"".join(
        entry.to_bytes(4, "big", signed=True) for entry in rotation
    )
    first = np.asarray(next(frames(bytes(data))))
    assert first.shape == (80, 48, 3)
    np.testing.assert_allclose(first, np.rot90(clip()[0], -1), atol=NEAR)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (video(10), "more than 9 frames"),
        (video(2, (160, 80)), "160 x 80 pixels a frame; 10000 are allowed"),
        (larger_than_it_says(160, 112), "160 x 112 pixels a frame"),
        (animation("WEBP", 4), "animated"),
        (animation("GIF", 4), "is neither an MP4 or WebM video"),
        (b"", "is neither an MP4 or WebM video"),
    ],
)
def test_video_beyond_the_limits_is_rejected(data: bytes, said: str) -> None:
    with pytest.raises(ImageFileError, match=said):
        check(data, BOUNDS)


def test_pixels_of_all_frames_together_are_bounded() -> None:
    bounds = VideoBounds(9, 5 * 32 * 32 - 1)
    with pytest.raises(ImageFileError, match="5119 pixels in all"):
        check(video(5), bounds)
    assert check(video(5), VideoBounds(9, 5 * 32 * 32)).frames == 5


@pytest.mark.parametrize("name", HOSTILE_VIDEOS)
def test_a_hostile_file_is_refused(name: str) -> None:
    with pytest.raises(ImageFileError):
        check(HOSTILE_VIDEOS[name](), BOUNDS)


def test_another_codec_is_named() -> None:
    with pytest.raises(ImageFileError, match=r"encoded as mjpeg; send H\.264"):
        check(HOSTILE_VIDEOS["another codec"](), BOUNDS)
