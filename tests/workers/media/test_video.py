"""Videos, read back by a decoder: their metadata and their pixels."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc
from PIL import Image

from workers.media.video import encode_video

FPS = 12
CODECS = {"mp4": "h264", "webm": "vp9"}
COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (200, 120, 40)]
COLOUR_TOLERANCE = 3
"""Levels of 255: YUV has 220 levels of 256, rounded twice, and the encoder is lossy."""


def moving(frames: int = 7, height: int = 48, width: int = 64) -> np.ndarray:
    """Return frames of a bright square that moves right on a dark gradient. All frames differ."""
    column, row = np.meshgrid(np.arange(width), np.arange(height))
    ground = np.stack([row, column, row + column], axis=-1) % 128
    clip = np.repeat(ground[None], frames, axis=0).astype(np.uint8)
    for number in range(frames):
        clip[number, 8:24, 4 + 5 * number : 20 + 5 * number] = (240, 200, 30)
    return clip


def flat(colour: tuple[int, int, int], frames: int = 3) -> np.ndarray:
    return np.broadcast_to(np.array(colour, np.uint8), (frames, 32, 48, 3)).copy()


def read(data: bytes) -> tuple[Any, list[Any]]:
    """Return the file's stream and its frames."""
    container = av.open(io.BytesIO(data))  # stays open: a closed container's stream is unusable
    (stream,) = container.streams
    return stream, list(container.decode(stream))


def as_bt709(frame: Any) -> np.ndarray:
    """Convert a frame to RGB as BT.709 in limited range, regardless of its metadata."""
    return frame.reformat(
        format="rgb24",
        src_colorspace=Colorspace.ITU709,
        src_color_range=ColorRange.MPEG,
        dst_color_range=ColorRange.JPEG,
    ).to_ndarray()


def animation(data: bytes) -> tuple[list[np.ndarray], list[int], Any]:
    """Return frames, durations in ms and the opened file of a GIF or WebP."""
    image: Any = Image.open(io.BytesIO(data))
    pixels, durations = [], []
    for number in range(image.n_frames):
        image.seek(number)
        pixels.append(np.asarray(image.convert("RGB")))
        durations.append(image.info["duration"])
    return pixels, durations, image


@pytest.mark.parametrize("format", CODECS)
def test_video_is_tagged_and_whole(format: str) -> None:
    clip = moving()
    stream, frames = read(encode_video(clip, format, FPS))
    context = stream.codec_context
    assert (context.codec.canonical_name, context.pix_fmt) == (CODECS[format], "yuv420p")
    assert (context.width, context.height) == (64, 48)
    assert len(frames) == len(clip)
    assert stream.average_rate == FPS
    times = [frame.pts * frame.time_base for frame in frames]
    assert times == pytest.approx([Fraction(i, FPS) for i in range(len(clip))], abs=1e-3)
    for tagged in (context, frames[0]):
        assert tagged.color_range == ColorRange.MPEG
        assert tagged.colorspace == Colorspace.ITU709
        assert tagged.color_primaries == ColorPrimaries.BT709
        assert tagged.color_trc == ColorTrc.BT709


@pytest.mark.parametrize("format", CODECS)
@pytest.mark.parametrize("colour", COLOURS)
def test_colours_survive_encoding(format: str, colour: tuple[int, int, int]) -> None:
    _, frames = read(encode_video(flat(colour), format, FPS))
    for frame in frames:
        difference = np.abs(as_bt709(frame).astype(int) - colour)
        assert difference.max() <= COLOUR_TOLERANCE


def test_wrong_colour_matrix_is_detected() -> None:
    """Prove that the test above can fail: BT.601's matrix misses these colours by far."""
    _, frames = read(encode_video(flat((200, 40, 200)), "mp4", FPS))
    wrong = frames[0].reformat(
        format="rgb24",
        src_colorspace=Colorspace.ITU601,
        src_color_range=ColorRange.MPEG,
        dst_color_range=ColorRange.JPEG,
    )
    assert np.abs(wrong.to_ndarray().astype(int) - (200, 40, 200)).max() > 5 * COLOUR_TOLERANCE


@pytest.mark.parametrize("format", CODECS)
def test_decoded_video_is_close_to_its_input(format: str) -> None:
    clip = moving()
    _, frames = read(encode_video(clip, format, FPS, quality=100))
    for frame, pixels in zip(frames, clip, strict=True):
        assert np.abs(as_bt709(frame).astype(int) - pixels).mean() < 6  # chroma is subsampled


def test_mp4_index_comes_first() -> None:
    data = encode_video(moving(), "mp4", FPS)
    assert data[4:8] == b"ftyp"
    assert 0 < data.index(b"moov") < data.index(b"mdat")


def test_odd_video_side_repeats_its_last_pixels() -> None:
    clip = moving(height=47, width=63)
    stream, frames = read(encode_video(clip, "mp4", FPS))
    assert (stream.codec_context.width, stream.codec_context.height) == (64, 48)
    shown = as_bt709(frames[0]).astype(int)
    assert np.abs(shown[-1] - shown[-2]).max() <= 12  # one row of 4:2:0 chroma, encoded
    stream, _ = read(encode_video(clip, "webm", FPS))
    assert (stream.codec_context.width, stream.codec_context.height) == (63, 47)


@pytest.mark.parametrize("format", CODECS)
def test_quality_determines_the_size(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 48, 64, 3), np.uint8)
    sizes = [len(encode_video(noise, format, FPS, quality)) for quality in (10, 60, 100)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] / 2


@pytest.mark.parametrize("format", [*CODECS, "gif", "webp"])
def test_equal_frames_encode_to_equal_bytes(format: str) -> None:
    """Other encoders run at the same time: one mode of x264 was not deterministic."""
    clip = moving()
    with ThreadPoolExecutor(8) as threads:
        files = threads.map(lambda _: encode_video(clip.copy(), format, FPS), range(100))
        assert len(set(files)) == 1


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("format", CODECS)
def test_shortest_videos(format: str, frames: int) -> None:
    assert len(read(encode_video(moving(frames), format, FPS))[1]) == frames


@pytest.mark.parametrize(("format", "tolerance"), [("gif", 8), ("webp", 8)])  # mean, of 255
def test_animations(format: str, tolerance: float) -> None:
    clip = moving()
    pixels, durations, image = animation(encode_video(clip, format, FPS))
    assert image.info["loop"] == 0, "plays for ever"
    assert sum(durations) == pytest.approx(1000 * len(clip) / FPS, abs=10)
    assert np.abs(np.stack(pixels).astype(int) - clip).mean() < tolerance


@pytest.mark.parametrize("colour", COLOURS)
def test_a_gif_has_the_colours_themselves(colour: tuple[int, int, int]) -> None:
    clip = np.concatenate([flat(colour, 2), flat((9, 9, 9), 1)])
    pixels, _, _ = animation(encode_video(clip, "gif", FPS))
    assert np.abs(pixels[0].astype(int) - colour).max() <= 1


def test_a_gif_keeps_time_at_any_rate() -> None:
    """16 frames a second are 6.25 hundredths each: some get 6, some 7."""
    _, durations, _ = animation(encode_video(moving(9), "gif", 16))
    assert set(durations) == {60, 70}
    assert sum(durations) == pytest.approx(9000 / 16, abs=5)


def test_another_format_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'avi'.*mp4, webm, gif, webp"):
        encode_video(moving(), "avi", FPS)
