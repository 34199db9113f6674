"""Video encoder: MP4, WebM, GIF or animated WebP, with sound. Equal frames give equal bytes.

Colours are tagged as BT.709 in the limited range, which players also assume for untagged video.
FFmpeg's default is BT.601 without a tag.
"""

from __future__ import annotations

import io
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc, Interpolation
from PIL import Image

from workers.media.image import LOSSLESS, QUALITY

CONTENT_TYPES = {"mp4": "video/mp4", "webm": "video/webm", "gif": "image/gif"}
"""Content types of the video formats that a request may name."""
THREADS = 4
"""Threads of an encoder, on any machine, because the bytes depend on their number."""
EXACTLY = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
"""RGB to YUV conversion that is the same on any processor."""
INTERLEAVED = {"max_interleave_delta": "0"}
"""Makes the muxer wait for every stream, so that sound and frames stay interleaved."""
CENTISECONDS = 100
"""GIF's time unit is a hundredth of a second."""
GIF_COLOURS = 256
DITHER = Image.Dither.FLOYDSTEINBERG
PALETTE_FRAMES = 8
"""Number of evenly spaced frames that determine the palette. All frames share it, to prevent
flicker."""
SOUND_LAYOUTS = {1: "mono", 2: "stereo"}
"""FFmpeg's channel layouts, by number of channels."""
SOUND_HZ = 48000
"""Fallback sample rate, which every encoder supports."""
SOUND_BITS_PER_S = 192_000
SOUND_CODECS = {"mp4": "aac", "webm": "libopus"}
"""FFmpeg's encoders, by container."""


@dataclass(frozen=True)
class Sound:
    """Sound of a video: a waveform with its sample rate."""

    samples: np.ndarray
    """float32 [channels, samples], of -1 to 1."""
    rate_hz: int

    def lasting(self, seconds: float) -> Sound:
        """Return the sound cut or padded with silence to that length."""
        count = round(seconds * self.rate_hz)
        samples = self.samples[:, :count]
        return Sound(np.pad(samples, ((0, 0), (0, count - samples.shape[1]))), self.rate_hz)


@dataclass(frozen=True)
class Encoder:
    """FFmpeg encoder, with its mapping of a quality from 1 to 100."""

    container: str
    container_options: Mapping[str, str]
    codec: str
    options: Mapping[str, str]
    crf_at_0: float
    crf_at_100: float
    multiple_px: int
    """Sides must be multiples of this."""

    def crf(self, quality: int) -> int:
        """Return the video encoder's constant rate factor for a quality; lower is better."""
        return round(self.crf_at_0 + (self.crf_at_100 - self.crf_at_0) * quality / 100)


ENCODERS = {
    "mp4": Encoder(
        container="mp4",
        container_options={"movflags": "+faststart"},
        codec="libx264",
        # Macroblock tree is not deterministic with threads.
        options={"preset": "veryfast", "mbtree": "0"},
        crf_at_0=45,
        crf_at_100=15,
        multiple_px=2,
    ),
    "webm": Encoder(
        container="webm",
        container_options={},
        codec="libvpx-vp9",
        options={"deadline": "good", "cpu-used": "5", "b": "0"},
        crf_at_0=56,
        crf_at_100=20,
        multiple_px=1,
    ),
}


def encode_video(
    frames: np.ndarray,
    format: str,
    fps: float,
    quality: int | None = None,
    sound: Sound | None = None,
) -> bytes:
    """Encode uint8 [frames, height, width, 3] as a file.

    H.264 with 4:2:0 chroma needs even sides; the last row or column of an odd one is repeated.

    Args:
        format: mp4, webm, gif or webp.
        quality: 1 to 100; ignored for GIF, which has 256 colours.
        sound: cut or padded to the frames' duration; ignored for GIF and WebP. None: silent.

    Raises: ValueError: another format.
    """
    quality = quality or QUALITY
    if format in ENCODERS:
        return _video(frames, ENCODERS[format], fps, quality, sound)
    if format == "gif":
        return _gif(frames, fps)
    if format == "webp":
        return _webp(frames, fps, quality)
    formats = ", ".join([*ENCODERS, "gif", "webp"])
    raise ValueError(f"{format!r} is no format of videos; choose from {formats}")


def _video(
    frames: np.ndarray, encoder: Encoder, fps: float, quality: int, sound: Sound | None
) -> bytes:
    # A named file: MP4's index is moved to the front in a second pass.
    with tempfile.NamedTemporaryFile(suffix=f".{encoder.container}") as file:
        options = {"fflags": "+bitexact", **INTERLEAVED, **encoder.container_options}
        with av.open(file.name, "w", format=encoder.container, options=options) as container:
            stream = _add_stream(container, frames, encoder, fps, quality)
            if sound is not None:
                track = _add_track(container, sound, SOUND_CODECS[encoder.container])
                container.mux(_packets(track, sound.lasting(len(frames) / fps)))
            for number, pixels in enumerate(frames):
                container.mux(stream.encode(_frame(pixels, number, encoder)))
            container.mux(stream.encode())
        return file.read()


def _add_track(container: Any, sound: Sound, codec: str) -> Any:
    """Add a sound stream to a video container that is being written.

    Raises: ValueError: more than two channels.
    """
    channels = len(sound.samples)
    if channels not in SOUND_LAYOUTS:
        raise ValueError(f"sound of {channels} channels has no layout; it has one or two")
    rates = av.Codec(codec, "w").audio_rates
    rate = sound.rate_hz if rates is None or sound.rate_hz in rates else SOUND_HZ
    track = container.add_stream(
        codec, rate=rate, layout=SOUND_LAYOUTS[channels], options={"flags": "+bitexact"}
    )
    track.bit_rate = SOUND_BITS_PER_S
    return track


def _packets(track: Any, sound: Sound) -> list[Any]:
    """Encode a sound track; return its packets in order."""
    samples = np.ascontiguousarray(np.clip(sound.samples, -1, 1), np.float32)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=SOUND_LAYOUTS[len(samples)])
    frame.sample_rate = sound.rate_hz
    frame.pts = 0
    return [*track.encode(frame), *track.encode()]


def _add_stream(
    container: Any, frames: np.ndarray, encoder: Encoder, fps: float, quality: int
) -> Any:
    rate = Fraction(fps).limit_denominator(1001)
    options = {**encoder.options, "crf": str(encoder.crf(quality))}
    stream = container.add_stream(encoder.codec, rate=rate, options=options)
    height, width = (round_up(side, encoder.multiple_px) for side in frames.shape[1:3])
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    context = stream.codec_context
    context.thread_count = THREADS
    context.color_range = ColorRange.MPEG
    context.colorspace = Colorspace.ITU709
    context.color_primaries = ColorPrimaries.BT709
    context.color_trc = ColorTrc.BT709
    return stream


def _frame(pixels: np.ndarray, number: int, encoder: Encoder) -> Any:
    height, width = pixels.shape[:2]
    bottom, right = (round_up(side, encoder.multiple_px) - side for side in (height, width))
    padded = np.pad(pixels, ((0, bottom), (0, right), (0, 0)), mode="edge")
    frame = av.VideoFrame.from_ndarray(padded, format="rgb24").reformat(
        format="yuv420p",
        dst_colorspace=Colorspace.ITU709,
        src_color_range=ColorRange.JPEG,
        dst_color_range=ColorRange.MPEG,
        interpolation=EXACTLY,
    )
    frame.pts = number
    return frame


def round_up(side: int, multiple: int) -> int:
    """Round a side up to a multiple."""
    return -(-side // multiple) * multiple


def _gif(frames: np.ndarray, fps: float) -> bytes:
    """Encode frames as a GIF with one palette for all."""
    palette = _palette(frames)
    images = [Image.fromarray(pixels).quantize(palette=palette, dither=DITHER) for pixels in frames]
    ends = [round(CENTISECONDS * number / fps) for number in range(len(frames) + 1)]
    durations = [10 * (end - start) for start, end in itertools.pairwise(ends)]
    return _animation(images, "gif", duration=durations, optimize=False, disposal=1)


def _palette(frames: np.ndarray) -> Image.Image:
    chosen = np.linspace(0, len(frames) - 1, min(PALETTE_FRAMES, len(frames))).round().astype(int)
    montage = Image.fromarray(np.concatenate(frames[chosen]))
    return montage.quantize(GIF_COLOURS, method=Image.Quantize.MEDIANCUT)


def _webp(frames: np.ndarray, fps: float, quality: int) -> bytes:
    images = [Image.fromarray(pixels) for pixels in frames]
    return _animation(
        images, "webp", duration=round(1000 / fps), quality=quality, method=0,
        lossless=quality == LOSSLESS,
    )  # fmt: skip


def _animation(images: Sequence[Image.Image], format: str, **options: Any) -> bytes:
    """Save images as an animated file that repeats forever."""
    file = io.BytesIO()
    images[0].save(file, format, save_all=True, append_images=images[1:], loop=0, **options)
    return file.getvalue()
