"""Sound of a video → a track of its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import av
import numpy as np

LAYOUTS = {1: "mono", 2: "stereo"}
"""FFmpeg's names of channels, by their number."""
RATE_HZ = 48000
"""Rate that every encoder takes: what has another than theirs is resampled to it."""
BITS_PER_S = 192_000
CODECS = {"mp4": "aac", "webm": "libopus"}
"""Encoders of FFmpeg, by the container that has their tracks."""


@dataclass(frozen=True)
class Sound:
    """Waveform."""

    samples: np.ndarray
    """float32 [channels, samples], of -1 to 1."""
    rate_hz: int

    def lasting(self, seconds: float) -> Sound:
        """Return it cut, or with silence behind it, to that length."""
        count = round(seconds * self.rate_hz)
        kept = self.samples[:, :count]
        return Sound(np.pad(kept, ((0, 0), (0, count - kept.shape[1]))), self.rate_hz)


def add_track(container: Any, sound: Sound, codec: str) -> Any:
    """Add a stream to a file that is being written.

    Raises: ValueError: more than two channels.
    """
    channels = len(sound.samples)
    if channels not in LAYOUTS:
        raise ValueError(f"sound of {channels} channels has no layout; it has one or two")
    rates = av.Codec(codec, "w").audio_rates
    rate = sound.rate_hz if rates is None or sound.rate_hz in rates else RATE_HZ
    track = container.add_stream(
        codec, rate=rate, layout=LAYOUTS[channels], options={"flags": "+bitexact"}
    )
    track.bit_rate = BITS_PER_S
    return track


def packets(track: Any, sound: Sound) -> list[Any]:
    """Encode sound; return its packets in order."""
    samples = np.ascontiguousarray(np.clip(sound.samples, -1, 1), np.float32)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=LAYOUTS[len(samples)])
    frame.sample_rate = sound.rate_hz
    frame.pts = 0
    return [*track.encode(frame), *track.encode()]
