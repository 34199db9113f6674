"""Sound track of a video file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import av
import numpy as np

LAYOUTS = {1: "mono", 2: "stereo"}
"""FFmpeg's channel layouts, by number of channels."""
RATE_HZ = 48000
"""Fallback sample rate, which every encoder supports."""
BITS_PER_S = 192_000
CODECS = {"mp4": "aac", "webm": "libopus"}
"""FFmpeg's encoders, by container."""


@dataclass(frozen=True)
class Sound:
    """Sound as a waveform with its sample rate."""

    samples: np.ndarray
    """float32 [channels, samples], of -1 to 1."""
    rate_hz: int

    def lasting(self, seconds: float) -> Sound:
        """Return the sound cut, or padded with silence, to that length."""
        count = round(seconds * self.rate_hz)
        samples = self.samples[:, :count]
        return Sound(np.pad(samples, ((0, 0), (0, count - samples.shape[1]))), self.rate_hz)


def add_track(container: Any, sound: Sound, codec: str) -> Any:
    """Add a sound stream to a container that is being written.

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
    """Encode a sound track; return its packets in order."""
    samples = np.ascontiguousarray(np.clip(sound.samples, -1, 1), np.float32)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=LAYOUTS[len(samples)])
    frame.sample_rate = sound.rate_hz
    frame.pts = 0
    return [*track.encode(frame), *track.encode()]
