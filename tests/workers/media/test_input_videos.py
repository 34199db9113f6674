"""Request videos, decoded and scaled in a separate process exactly as the model would."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.media.scaling import FrameScaling
from models.spec.model_spec import ModelSpec
from models.spec.request import RequestError, read_request
from models.wan import animate_inputs, vace_inputs
from models.wan.request import WanRequest
from models.wan.request_videos import video_frames
from models.wan.vace_images import vace_inputs as inputs_of_vace
from service.settings.limits import LimitSettings
from tests.hostile_images import HOSTILE_VIDEOS, transparent_video, video
from tests.models.wan.test_request import FIELDS
from tests.workers.toy import SPEC
from workers.media import input_videos
from workers.media.input_videos import InputVideos
from workers.media.video import encode_video

SIZE = {"width": 80, "height": 48, "num_frames": 9}
FACE_PX = 32
VACE = {"control_video": vace_inputs.FRAMES, "mask_video": vace_inputs.MASKS}
ANIMATE = {
    "pose_video": animate_inputs.FRAMES,
    "face_video": FrameScaling(side_px=FACE_PX),
    "mask_video": animate_inputs.FRAMES,
}


def spec(scaling: Mapping[str, FrameScaling]) -> ModelSpec:
    return SPEC.model_copy(update={"frame_scaling": dict(scaling)})


def noise(frames: int, width: int = 112, height: int = 96) -> np.ndarray:
    levels = np.random.default_rng(frames).integers(0, 256, (frames, height, width, 3), np.uint8)
    return levels


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def clip(frames: int) -> bytes:
    return encode_video(noise(frames), "mp4", 16, 90)


@cache
def large_video() -> bytes:
    return video(9, (4096, 2160))


async def scaled(
    images: Mapping[str, bytes], scaling: Mapping[str, FrameScaling] = VACE, **limits: Any
) -> Mapping[str, bytes]:
    result = await InputVideos(LimitSettings(**limits)).scaled(images, SIZE, spec(scaling))
    assert result.cpu_s > 0
    return result.images


@pytest.mark.parametrize(
    "images",
    [
        {"control_video": clip(5), "mask_video": clip(5)},
        {"control_video": clip(5), "mask_video": png(noise(1)[0])},
        {f"control_video.{index}": png(frame) for index, frame in enumerate(noise(3))},
    ],
    ids=["two files", "a mask for all frames", "an image a frame"],
)
async def test_vace_gets_the_same_pixels(images: dict[str, bytes]) -> None:
    reference = png(noise(1)[0])
    frames = await scaled({**images, "reference_images.0": reference})
    assert frames.pop("reference_images.0") == reference  # type: ignore[attr-defined]
    assert {path.partition(".")[0] for path in frames} == {
        path.partition(".")[0] for path in images
    }
    assert all(Image.open(io.BytesIO(file)).size == (80, 48) for file in frames.values())
    request = read_request(WanRequest, {**FIELDS, **SIZE})
    as_sent, as_scaled = (inputs_of_vace(request, files, 8) for files in (images, frames))
    for name in as_sent:
        np.testing.assert_array_equal(as_scaled[name], as_sent[name])


async def test_animate_gets_the_same_pixels() -> None:
    images = {name: clip(5) for name in ANIMATE}
    frames = await scaled(images, ANIMATE)
    for name, size in {"pose_video": (80, 48), "face_video": (FACE_PX, FACE_PX)}.items():
        read = [
            animate_inputs._read(video_frames(files, name), name, size, "RGB", 9)
            for files in (images, frames)
        ]
        np.testing.assert_array_equal(*read)


async def test_transparent_pixels_become_white() -> None:
    """The confined process may use the decoder of alpha channels."""
    frames = await scaled({"control_video": transparent_video()})
    with Image.open(io.BytesIO(frames["control_video.1"])) as frame:
        assert min(frame.convert("RGB").getpixel((40, 44))) > 250


async def test_a_request_without_videos_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InputVideos, "_start", None)
    images = {"reference_images.0": b"a file"}
    result = await InputVideos().scaled(images, SIZE, spec(VACE))
    assert (result.images, result.cpu_s) == (images, 0.0)


@pytest.mark.parametrize("name", sorted(HOSTILE_VIDEOS))
async def test_hostile_video_fails_only_its_request(name: str) -> None:
    with pytest.raises(RequestError) as refused:
        await scaled({"control_video": HOSTILE_VIDEOS[name]()}, max_frame_pixels=10**6)
    assert refused.value.field == "control_video"


async def test_frames_have_a_size_and_a_number() -> None:
    with pytest.raises(RequestError, match="128 x 128 pixels a frame; 10000 are allowed"):
        await scaled({"control_video": video(3, (128, 128))}, max_frame_pixels=10_000)
    with pytest.raises(RequestError, match="more than 9 frames"):
        await scaled({"control_video": video(10)})


async def test_processor_time_is_bounded() -> None:
    sent = {"control_video": clip(5), "mask_video": large_video()}
    with pytest.raises(RequestError, match=r"more than 0\.02 s to decode and scale"):
        await scaled(sent, video_cpu_s=0.005)


async def test_memory_is_the_childs() -> None:
    """The video has nine frames of 8.8 million pixels; this process gets only scaled frames."""
    sent = {"control_video": large_video()}
    before = peak_bytes()
    frames = await scaled(sent)
    assert len(frames) == 9
    assert peak_bytes() - before < 4096 * 2160 * 3


def peak_bytes() -> int:
    """Return the peak memory of this process, and reset the peak."""
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    Path("/proc/self/clear_refs").write_text("5")
    return int(peak.split()[1]) * 1024


async def test_cancellation_kills_the_process() -> None:
    videos, started = InputVideos(), asyncio.get_running_loop().create_future()
    start = videos._start

    async def starting() -> asyncio.subprocess.Process:
        started.set_result(await start())
        return await started

    videos._start = starting
    task = asyncio.create_task(videos.scaled({"control_video": clip(5)}, SIZE, spec(VACE)))
    child = await started
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and child.returncode is not None


def test_a_spec_keeps_it_in_json() -> None:
    text = spec(ANIMATE).model_dump_json()
    assert ModelSpec.model_validate_json(text).frame_scaling["face_video"] == FrameScaling(
        **asdict(ANIMATE["face_video"])
    )


@pytest.mark.parametrize("answer", ["(2**60).to_bytes(8, 'big')", "(1).to_bytes(8, 'big') + b'a'"])
async def test_compromised_decoder_process_is_killed(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compromised child process may send frames of any size and in any number."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.stdin.buffer.read()\nwhile True: sys.stdout.buffer.write({answer})\n"
    )
    monkeypatch.setattr(input_videos, "PROGRAM", program)
    with pytest.raises(RequestError, match="breaks the decoder"):
        await scaled({"control_video": clip(5)})
