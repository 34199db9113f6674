"""Videos over HTTP: requests, job views, and downloads in parts."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import av
import httpx
import pytest

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.standin import VIDEO, StandIn, clip, picture

CAT = {"prompt": "a cat", "model": VIDEO.name}
PICTURE = base64.b64encode(picture()).decode()


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, VIDEO) as pool:
        yield pool


async def generate(http: httpx.AsyncClient, headers: Any = None, **body: Any) -> httpx.Response:
    return await http.post("/v1/generate", json=CAT | body, headers=headers)


def frames(data: bytes) -> int:
    with av.open(io.BytesIO(data)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.mark.parametrize("accept", ["video/mp4", "video/webm", "image/gif"])
async def test_video_bytes(http: httpx.AsyncClient, pool: StandIn, accept: str) -> None:
    answer = await generate(http, {"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, accept)
    assert frames(answer.content) == VIDEO.defaults["num_frames"]


async def test_video_defaults_to_mp4(http: httpx.AsyncClient, pool: StandIn) -> None:
    job = (await generate(http, {"Prefer": "wait"}, num_frames=9, fps=4)).json()
    [output] = job["outputs"]
    assert output["content_type"] == "video/mp4"
    assert (output["num_frames"], output["fps"], output["duration_s"]) == (9, 4, 2.25)
    assert output["sound_hz"] is None
    assert (job["request"]["num_frames"], job["request"]["fps"]) == (9, 4)
    assert job["request"]["output"]["format"] == "mp4"


async def test_any_image_type_of_a_video_is_animated(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    assert (await generate(http, {"Accept": "image/*"})).headers["content-type"] == "image/gif"
    assert (await generate(http, {"Accept": "video/*"})).headers["content-type"] == "video/mp4"


async def test_frames_are_outputs_and_no_answer_in_one_piece(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    refused = await generate(http, {"Accept": "image/png"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "output.format"
    as_png = {"output": {"format": "png"}}
    job = (await generate(http, {"Prefer": "wait"}, num_images=2, **as_png)).json()
    assert [output["index"] for output in job["outputs"]] == list(range(10))
    assert {output["num_frames"] for output in job["outputs"]} == {None}
    answer = await generate(http, {"Accept": "image/png"}, num_frames=1)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")


async def test_player_fetches_byte_ranges(http: httpx.AsyncClient, pool: StandIn) -> None:
    """Browsers fetch the first bytes, then the rest."""
    job = (await generate(http, {"Prefer": "wait"})).json()
    [output] = job["outputs"]
    size, full = output["bytes"], clip("mp4", 5)
    assert len(full) == size
    parts = [
        f"bytes=0-{size // 3}",
        f"bytes={size // 3 + 1}-{size // 2}",
        f"bytes={size // 2 + 1}-",
    ]
    answers = [await http.get(output["url"], headers={"Range": part}) for part in parts]
    for answer in answers:
        assert (answer.status_code, answer.headers["content-type"]) == (206, "video/mp4")
        assert answer.headers["accept-ranges"] == "bytes"
    assert b"".join(answer.content for answer in answers) == full
    end = await http.get(output["url"], headers={"Range": "bytes=-7"})
    assert end.content == full[-7:]


async def test_first_and_last_frame_images_are_stored(
    http: httpx.AsyncClient, pool: StandIn, store: Store
) -> None:
    answer = await generate(http, {"Prefer": "wait"}, image=PICTURE, last_image=PICTURE)
    assert answer.status_code == 200
    for name in ("image", "last_image"):
        key = answer.json()["request"][name]
        assert key == f"inputs/{answer.json()['id']}/{name}"
        assert (await store.get(key)).startswith(b"\x89PNG")


async def test_inline_videos(http: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await generate(http, {"Prefer": "wait"}, output={"inline": True})
    assert frames(base64.b64decode(answer.json()["outputs"][0]["base64"])) == 5


async def test_model_lists_its_limits_and_schedulers(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    model = (await http.get(f"/v1/models/{VIDEO.name}")).json()
    assert model["limits"]["max_frames"] == 17
    assert model["limits"]["frames_multiple"] == 4
    assert model["schedulers"]["euler"] == {}
    assert model["schedulers"]["unipc"]["solver_type"]["choices"] == ["bh1", "bh2"]


async def test_the_rate_has_bounds(http: httpx.AsyncClient, pool: StandIn) -> None:
    for fps in (0, 241, 12.5):
        answer = await generate(http, fps=fps)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "fps"
