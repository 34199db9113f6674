"""Sound of videos, read back by a decoder: frequencies, channels, beginning and length."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from service.recipes.files import read_recipe
from tests.service.recipes.examples import recipe
from workers.media.outputs import File, Marking, files
from workers.media.video import SOUND_LAYOUTS, Sound, encode_video

FPS = 24
LEFT_HZ, RIGHT_HZ = 440, 1000
CODECS = {"mp4": "aac", "webm": "opus"}
AAC_FRAME = 1024
"""Samples of an AAC frame. The last frame may extend beyond the track's end."""


def sines(rate_hz: int, seconds: float, *hz: float) -> Sound:
    times = np.arange(round(rate_hz * seconds)) / rate_hz
    waves = [0.5 * np.sin(2 * np.pi * each * times) for each in hz or (LEFT_HZ, RIGHT_HZ)]
    return Sound(np.stack(waves).astype(np.float32), rate_hz)


def frames(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (count, 32, 48, 3)).astype(np.uint8)


def heard(data: bytes) -> tuple[np.ndarray, int, float, str]:
    """Return samples [channels, samples], their rate, the track's seconds and the codec."""
    with av.open(io.BytesIO(data)) as container:
        (track,) = container.streams.audio
        decoded = list(container.decode(track))
        assert decoded[0].pts == 0
        samples = np.concatenate([frame.to_ndarray() for frame in decoded], axis=1)
        seconds = float(track.duration * track.time_base) if track.duration else 0.0
        return samples, decoded[0].sample_rate, seconds, track.codec_context.name


def loudest_hz(samples: np.ndarray, rate_hz: int) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax() * rate_hz / len(samples))


@pytest.mark.parametrize("format", CODECS)
@pytest.mark.parametrize("rate_hz", [48000, 24000])
def test_channels_come_back_with_their_frequencies_and_length(format: str, rate_hz: int) -> None:
    count = 49
    sound = sines(rate_hz, count / FPS)
    samples, rate, seconds, codec = heard(encode_video(frames(count), format, FPS, sound=sound))
    assert codec.startswith(CODECS[format])
    assert rate == (rate_hz if format == "mp4" else 48000)
    assert loudest_hz(samples[0], rate) == pytest.approx(LEFT_HZ, abs=1)
    assert loudest_hz(samples[1], rate) == pytest.approx(RIGHT_HZ, abs=1)
    length = count / FPS * rate
    if format == "mp4":
        assert seconds == pytest.approx(count / FPS, abs=1e-3)
        assert 0 <= samples.shape[1] - length < AAC_FRAME
    else:
        assert samples.shape[1] == pytest.approx(length, abs=1)


@pytest.mark.parametrize("format", CODECS)
def test_sound_starts_without_delay(format: str) -> None:
    """A click at 0.1 s is decoded at that time, without the encoder's initial padding."""
    click = Sound(np.zeros((1, 48000), np.float32), 48000)
    click.samples[0, 4800:4804] = 0.9
    samples, _, _, _ = heard(encode_video(frames(24), format, FPS, sound=click))
    assert abs(int(np.abs(samples[0]).argmax()) - 4801) <= 2


@pytest.mark.parametrize(("seconds", "filled"), [(0.5, True), (2.0, False)])
def test_sound_is_as_long_as_its_frames(seconds: float, filled: bool) -> None:
    data = encode_video(frames(FPS), "webm", FPS, sound=sines(48000, seconds))
    samples, _, _, _ = heard(data)
    assert samples.shape == (2, 48000)
    is_silent = bool(np.abs(samples[:, -12000:]).max() < 1e-3)
    assert is_silent is filled


def test_another_rate_is_resampled() -> None:
    samples, rate, seconds, _ = heard(encode_video(frames(24), "mp4", FPS, sound=sines(11000, 1)))
    assert (rate, seconds) == (48000, 1.0)
    assert loudest_hz(samples[0], rate) == pytest.approx(LEFT_HZ, abs=1)


@pytest.mark.parametrize("format", CODECS)
def test_equal_sound_gives_equal_bytes_and_unchanged_frames(format: str) -> None:
    clip, sound = frames(9), sines(24000, 9 / FPS, LEFT_HZ)
    data = encode_video(clip, format, FPS, sound=sound)
    assert data == encode_video(clip, format, FPS, sound=sound)
    assert shown(data) == shown(encode_video(clip, format, FPS))


def shown(data: bytes) -> list[bytes]:
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray().tobytes() for frame in container.decode(video=0)]


@pytest.mark.parametrize("format", CODECS)
def test_sound_is_interleaved_with_frames(format: str) -> None:
    with av.open(
        io.BytesIO(encode_video(frames(300), format, FPS, sound=sines(24000, 12.5)))
    ) as container:
        kinds = [packet.stream.type for packet in container.demux() if packet.size]
    middle = kinds[len(kinds) // 3 : 2 * len(kinds) // 3]
    assert {*middle} == {"audio", "video"}


def test_loud_sound_is_clipped_and_many_channels_are_refused() -> None:
    loud = Sound(4 * sines(24000, 1.0).samples, 24000)
    samples, _, _, _ = heard(encode_video(frames(24), "mp4", FPS, sound=loud))
    assert np.abs(samples).max() < 1.5
    with pytest.raises(ValueError, match="3 channels"):
        encode_video(frames(3), "mp4", FPS, sound=sines(24000, 1.0, 1, 2, 3))
    assert [*SOUND_LAYOUTS] == [1, 2]


def made(format: str) -> list[File]:
    request = {"output": {"format": format}, "fps": FPS}
    return list(files(frames(12), request, recipe(), Marking(), sines(24000, 0.5)))


@pytest.mark.parametrize("format", CODECS)
def test_a_marked_file_still_has_its_sound(format: str) -> None:
    [file] = made(format)
    assert read_recipe(file.data) == (recipe() if format == "mp4" else None)  # WebM has none
    assert (file.sound_hz, file.duration_s) == (24000, 0.5)
    samples, rate, _, _ = heard(file.data)
    assert loudest_hz(samples[0], rate) == pytest.approx(LEFT_HZ, abs=2)


@pytest.mark.parametrize("format", ["gif", "png"])
def test_formats_without_sound_leave_it_out(format: str) -> None:
    assert {file.sound_hz for file in made(format)} == {None}
