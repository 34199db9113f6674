"""Control videos over HTTP: kept as they were sent, or refused by field."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.jobs.queue import Queue
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
    limits = settings.limits.model_copy(update={"max_clip_pixels": 35_000})
    return settings.model_copy(update={"limits": limits})


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, CONTROLLED) as pool:
        yield pool


async def generate(http: httpx.AsyncClient, headers: Any = None, **body: Any) -> httpx.Response:
    asked = {"prompt": "a cat", "model": VIDEO.name, **body}
    return await http.post("/v1/generate", json=asked, headers=headers)


@pytest.mark.parametrize("mask", [encoded(clip("webm", 5)), IMAGE])
async def test_videos_are_kept_as_they_were_sent(
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
        ({"control_video": [IMAGE, FIVE]}, "control_video.1", "no PNG, JPEG or WebP"),
        ({"control_video": encoded(b"#EXTM3U\n")}, "control_video", "no video in MP4 or WebM"),
        ({"control_video": "http://a.example/a.mp4"}, "control_video", "does not fetch"),
        ({"mask_video": FIVE}, "control_video", "send the video that mask_video masks too"),
        (
            {"control_video": FIVE, "mask_video": encoded(clip("mp4", 3))},
            "mask_video",
            "has 3 frames, and control_video 5",
        ),
        ({"control_video": [IMAGE] * 3, "mask_video": [IMAGE] * 2}, "mask_video", "has 2 frames"),
        ({"control_video": FIVE, "image": IMAGE}, "image", "as a frame of control_video"),
        ({"conditioning_scale": [1.0, 1.0]}, "conditioning_scale", "2 numbers; send one, or 3"),
        ({"reference_images": [IMAGE] * 3}, "reference_images", "takes 2 at most"),
        ({"reference_images": [IMAGE, NARROW]}, "reference_images.1", "8 pixels wide and high"),
        ({"reference_images": [LONG]}, "reference_images.0", "at most 4 times as long as wide"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_field(
    http: httpx.AsyncClient, pool: StandIn, body: dict[str, Any], field: str, said: str
) -> None:
    answer = await generate(http, **body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert said in error["message"]


async def test_frames_are_bounded_together(http: httpx.AsyncClient, pool: StandIn) -> None:
    """As those of a video in one file are."""
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
