"""Control videos over HTTP: stored unchanged, or rejected with the field's name."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from models.media.image_files import ImageFile
from service.admission.price import DECODED_AND_SCALED, SCALED_S_PER_PIXEL
from service.http.image_checks import ImageChecks
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostKey, CostRow, PoolFacts
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.hostile_images import video
from tests.service.standin import VIDEO, StandIn, clip, picture

CONTROLLED = VIDEO.model_copy(
    update={
        "fields": VIDEO.fields
        | {"control_video", "mask_video", "conditioning_scale", "reference_images"},
        "limits": VIDEO.limits.model_copy(
            update={"conditioning_scales": 3, "max_reference_images": 2}
        ),
        "least_side_px": {"reference_images": 8},
        "most_ratio": {"reference_images": 4},
    }
)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


NARROW, LONG = encoded(picture(size=(7, 12))), encoded(picture(size=(41, 10)))
FIVE, IMAGE = encoded(clip("mp4", 5)), encoded(picture())


@pytest.fixture
def settings(settings: Settings) -> Settings:
    bounds = {"max_clip_pixels": 35_000, "max_frame_pixels": 20_000}
    limits = settings.limits.model_copy(update=bounds)
    return settings.model_copy(update={"limits": limits})


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, CONTROLLED) as pool:
        yield pool


async def generate(http: httpx.AsyncClient, headers: Any = None, **body: Any) -> httpx.Response:
    fields = {"prompt": "a cat", "model": VIDEO.name, **body}
    return await http.post("/v1/generate", json=fields, headers=headers)


@pytest.mark.parametrize("mask", [encoded(clip("webm", 5)), IMAGE])
async def test_videos_are_stored_unchanged(
    http: httpx.AsyncClient, pool: StandIn, store: Store, mask: str
) -> None:
    sent = {"control_video": FIVE, "mask_video": mask, "conditioning_scale": [0.5]}
    answer = await generate(http, {"Prefer": "wait"}, **sent)
    assert answer.status_code == 200
    job = answer.json()
    assert job["request"]["conditioning_scale"] == [0.5]
    for name in ("control_video", "mask_video"):
        assert job["request"][name] == f"inputs/{job['id']}/{name}"
        assert encoded(await store.get(job["request"][name])) == sent[name]


async def test_a_list_of_frames_is_kept_frame_by_frame(
    http: httpx.AsyncClient, pool: StandIn, store: Store
) -> None:
    answer = await generate(http, {"Prefer": "wait"}, control_video=[IMAGE] * 3)
    job = answer.json()
    keys = job["request"]["control_video"]
    assert keys == [f"inputs/{job['id']}/control_video.{index}" for index in range(3)]
    assert {encoded(await store.get(key)) for key in keys} == {IMAGE}


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"control_video": encoded(video(6))}, "control_video", "more than 5 frames"),
        ({"control_video": [IMAGE] * 6}, "control_video", "has 6 frames; num_frames is 5"),
        ({"control_video": [IMAGE, FIVE]}, "control_video.1", "is not a PNG, JPEG or WebP image"),
        (
            {"control_video": encoded(b"#EXTM3U\n")},
            "control_video",
            "is neither an MP4 or WebM video",
        ),
        ({"control_video": "http://a.example/a.mp4"}, "control_video", "fetches no URLs"),
        ({"mask_video": FIVE}, "control_video", "also send the video that mask_video masks"),
        (
            {"control_video": FIVE, "mask_video": encoded(clip("mp4", 3))},
            "mask_video",
            "has 3 frames, and control_video 5",
        ),
        ({"control_video": [IMAGE] * 3, "mask_video": [IMAGE] * 2}, "mask_video", "has 2 frames"),
        ({"control_video": FIVE, "image": IMAGE}, "image", "as a frame of control_video"),
        ({"conditioning_scale": [1.0, 1.0]}, "conditioning_scale", "2 numbers; send one, or 3"),
        ({"reference_images": [IMAGE] * 3}, "reference_images", "accepts 2 at most"),
        ({"reference_images": [IMAGE, NARROW]}, "reference_images.1", "8 pixels wide and high"),
        ({"reference_images": [LONG]}, "reference_images.0", "an aspect ratio of at most 4:1"),
    ],
)
async def test_unsupported_field_is_named(
    http: httpx.AsyncClient, pool: StandIn, body: dict[str, Any], field: str, said: str
) -> None:
    answer = await generate(http, **body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert said in error["message"]


async def test_frames_are_bounded_together(http: httpx.AsyncClient, pool: StandIn) -> None:
    """A video file's limit applies to a list of frames."""
    large = encoded(picture(size=(100, 100)))
    answer = await generate(http, control_video=[large] * 4, mask_video=[large] * 3)
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["field"]) == (422, "control_video.3")
    assert "40000 pixels; 35000 are allowed" in error["message"]


async def test_a_model_that_reads_no_videos_refuses_them_by_name(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    blind = VIDEO.model_copy(update={"fields": VIDEO.fields - {"control_video", "mask_video"}})
    async with StandIn(queue, store, blind):
        answer = await generate(http, control_video=FIVE)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["control_video"]


@pytest.fixture
def slow_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each file's decoding take a quarter of a second of processor time."""

    def slowly(check: Callable[..., Awaitable[ImageFile]]) -> Callable[..., Awaitable[ImageFile]]:
        async def checked(*arguments: Any) -> ImageFile:
            return replace(await check(*arguments), decode_s=0.25)

        return checked

    for name in ("check", "check_video"):
        monkeypatch.setattr(ImageChecks, name, slowly(getattr(ImageChecks, name)))


async def test_reading_a_video_is_priced(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn, slow_decoding: None
) -> None:
    """The price and the check of deadlines include the processor time of decoding."""
    await queue.register("other", CONTROLLED, ready=True, facts=PoolFacts("here", slots=1))
    row = CostRow(step_s=0.1, encode_s=0.1, decode_s=0.3)
    bucket = CONTROLLED.bucket(CONTROLLED.defaults)
    await queue.measured(VIDEO.name, {CostKey(bucket, "here", 1): row})
    priced = [
        await queue.get((await generate(http, **more)).json()["id"])
        for more in ({}, {"control_video": FIVE}, {"control_video": [IMAGE] * 5})
    ]
    plain, *others = [(job.cost or 0, job.run_s or 0) for job in priced if job]
    assert plain[0] > 0
    for (cost, run_s), files in zip(others, (1, 5), strict=True):
        assert cost - plain[0] == pytest.approx(files * 0.25 * DECODED_AND_SCALED)
        assert run_s - plain[1] == pytest.approx(files * 0.25 * DECODED_AND_SCALED)
    late = await generate(http, control_video=FIVE, deadline_s=plain[1] + 0.1)
    assert (late.status_code, late.json()["errors"][0]["field"]) == (422, "deadline_s")
    assert "takes about 1.3 s" in late.json()["detail"]


async def test_reading_images_is_priced_for_each_output(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn, slow_decoding: None
) -> None:
    """A worker reads the images again for each output of the job."""
    await queue.register("other", CONTROLLED, ready=True, facts=PoolFacts("here", slots=1))
    row = CostRow(step_s=0.1, encode_s=0.1, decode_s=0.3)
    bucket = CONTROLLED.bucket(CONTROLLED.defaults)
    await queue.measured(VIDEO.name, {CostKey(bucket, "here", 1): row})
    large = encoded(picture(size=(100, 100)))
    priced = [
        await queue.get((await generate(http, **more, num_images=2)).json()["id"])
        for more in ({}, {"reference_images": [large, large]})
    ]
    plain, reading = [(job.cost or 0, job.run_s or 0) for job in priced if job]
    expected = pytest.approx(2 * 2 * (0.25 + 100 * 100 * SCALED_S_PER_PIXEL))
    assert (plain[0] > 0, reading[0] - plain[0], reading[1] - plain[1]) == (
        True,
        expected,
        expected,
    )


@pytest.mark.parametrize(
    ("video_sent", "said"),
    [
        (encoded(video(1, (160, 144))), "160 x 144 pixels a frame; 20000 are allowed"),
        ([encoded(picture(size=(160, 144)))], "160 x 144 pixels; a frame may have 20000"),
    ],
    ids=["a file", "an image a frame"],
)
async def test_frames_are_bounded(
    http: httpx.AsyncClient, pool: StandIn, video_sent: Any, said: str
) -> None:
    answer = await generate(http, control_video=video_sent)
    assert answer.status_code == 422
    assert said in answer.text
