"""Videos of poses, faces and backgrounds over HTTP: stored unchanged, or rejected with the field's
name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.routes.test_control_video import FIVE, IMAGE, encoded
from tests.service.standin import VIDEO, StandIn, clip

ANIMATED = VIDEO.model_copy(
    update={
        "fields": VIDEO.fields - {"control_video"}
        | {"image", "pose_video", "face_video", "background_video", "mask_video"},
        "tasks": ("image-to-video",),
        "needed": frozenset({"pose_video", "face_video"}),
    }
)
WHOLE = {"image": IMAGE, "pose_video": FIVE, "face_video": [IMAGE] * 3}


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, ANIMATED) as pool:
        yield pool


async def generate(http: httpx.AsyncClient, headers: Any = None, **body: Any) -> httpx.Response:
    fields = {"prompt": "a cat", "model": VIDEO.name, **body}
    return await http.post("/v1/generate", json=fields, headers=headers)


async def test_videos_are_stored_unchanged(
    http: httpx.AsyncClient, pool: StandIn, store: Store
) -> None:
    behind = {"background_video": FIVE, "mask_video": IMAGE}
    answer = await generate(http, {"Prefer": "wait"}, **WHOLE, **behind)
    assert answer.status_code == 200
    job = answer.json()
    for name in ("pose_video", "background_video", "mask_video"):
        assert encoded(await store.get(job["request"][name])) == {**WHOLE, **behind}[name]
    keys = job["request"]["face_video"]
    assert keys == [f"inputs/{job['id']}/face_video.{index}" for index in range(3)]


@pytest.mark.parametrize(
    ("changed", "field", "said"),
    [
        ({"pose_video": None}, "pose_video", "the video of poses"),
        ({"face_video": None}, "face_video", "the video of a face"),
        ({"image": None}, "image", "image"),
        ({"face_video": [IMAGE] * 6}, "face_video", "has 6 frames; num_frames is 5"),
        ({"background_video": FIVE}, "mask_video", "send it with background_video"),
        ({"mask_video": FIVE}, "background_video", "send it with mask_video"),
        (
            {"background_video": FIVE, "mask_video": encoded(clip("mp4", 3))},
            "mask_video",
            "has 3 frames, and background_video 5",
        ),
    ],
)
async def test_unsupported_field_is_named(
    http: httpx.AsyncClient, pool: StandIn, changed: dict[str, Any], field: str, said: str
) -> None:
    body = {name: value for name, value in {**WHOLE, **changed}.items() if value is not None}
    answer = await generate(http, **body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert said in error["message"]
