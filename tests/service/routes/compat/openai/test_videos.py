"""OpenAI's video endpoints, tested by the OpenAI SDK and by requests of MLPerf Endpoints'
harness."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError
from PIL import Image

from service.jobs.model.job import JobError, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.standin import SIZE_PX, VIDEO, StandIn, clip, picture

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
"""The SDK deprecates the API, since OpenAI has closed its service."""


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, VIDEO) as pool:
        yield pool


def a_cat(**fields: Any) -> dict[str, Any]:
    return {"prompt": "a cat", "extra_body": {"seed": 7, "fps": 8, **fields}}


async def test_a_video_is_created_polled_and_fetched(client: AsyncOpenAI, pool: StandIn) -> None:
    video = await client.videos.create_and_poll(**a_cat(), model="wan-demo", size="64x96")
    assert (video.status, video.progress, video.object) == ("completed", 100, "video")
    assert (video.prompt, video.size, video.model) == ("a cat", "64x96", "wan-demo")
    assert video.seconds == "0.625" and video.error is None
    assert video.completed_at is not None and video.expires_at is not None
    assert video.created_at <= video.completed_at < video.expires_at
    content = await client.videos.download_content(video.id)
    assert content.content == clip("mp4", 5)
    (job,) = pool.received
    assert (job.id, job.request["seed"]) == (video.id, 7)
    assert (job.request["width"], job.request["height"]) == (64, 96)


async def test_small_images_of_it_can_be_fetched(client: AsyncOpenAI, pool: StandIn) -> None:
    video = await client.videos.create_and_poll(**a_cat())
    sizes = {}
    for variant in ("thumbnail", "spritesheet"):
        content = await client.videos.download_content(video.id, variant=variant)
        image = Image.open(io.BytesIO(content.content))
        sizes[variant] = (image.format, image.size)
    assert sizes == {
        "thumbnail": ("WEBP", (SIZE_PX, SIZE_PX)),
        "spritesheet": ("WEBP", (4 * SIZE_PX, 2 * SIZE_PX)),
    }


async def test_frames_as_png_have_no_small_images(client: AsyncOpenAI, pool: StandIn) -> None:
    body = a_cat(output=json.dumps({"format": "png"}))
    video = await client.videos.create_and_poll(**body)
    with pytest.raises(NotFoundError, match="frames in image/png have no thumbnail"):
        await client.videos.download_content(video.id, variant="thumbnail")


@pytest.mark.parametrize(("seconds", "frames"), [("1", 9), ("2", 17), ("0.1", 1), ("1.3", 9)])
async def test_seconds_are_the_nearest_number_of_frames(
    client: AsyncOpenAI, pool: StandIn, seconds: Any, frames: int
) -> None:
    await client.videos.create_and_poll(**a_cat(), seconds=seconds)
    assert pool.received[0].request["num_frames"] == frames


async def test_a_form_has_numbers_and_objects_as_json(client: AsyncOpenAI, pool: StandIn) -> None:
    further = a_cat(num_frames=9, scheduler='{"name": "unipc", "solver_order": 3}')
    await client.videos.create_and_poll(**further, model="wan-demo")
    request = pool.received[0].request
    assert request["num_frames"] == 9
    assert request["scheduler"] == {"name": "unipc", "solver_order": 3}


async def test_video_may_begin_with_an_image(
    client: AsyncOpenAI, wire: httpx.AsyncClient, pool: StandIn
) -> None:
    """The client sends a file. Other programs send URLs, which the client cannot."""
    image = picture(size=(96, 64))
    await client.videos.create(**a_cat(), input_reference=("a.png", image, "image/png"))
    uri = "data:image/png;base64," + base64.b64encode(image).decode()
    await client.post(
        "/videos",
        body={"prompt": "a dog", "input_reference": {"image_url": uri}},
        cast_to=httpx.Response,
    )
    form = {"prompt": (None, "a dog"), "input_reference[image_url]": (None, uri)}
    assert (await wire.post("/v1/videos", files=form)).status_code == 200
    made = [job async for job in client.videos.list()]
    assert len(made) == 3
    for job in made:
        stored = await pool.queue.get(job.id)
        assert stored is not None and await pool.store.get(stored.request["image"]) == image


async def test_response_has_a_polling_interval(client: AsyncOpenAI, pool: StandIn) -> None:
    pool.may_finish.clear()
    video = await client.videos.create(**a_cat())
    assert video.status in ("queued", "in_progress") and video.progress < 100
    answer = await client.videos.with_raw_response.retrieve(video.id)
    assert 250 <= int(answer.headers["openai-poll-after-ms"]) <= 5000
    with pytest.raises(APIStatusError) as error:
        await client.videos.download_content(video.id)
    assert (error.value.status_code, error.value.code) == (409, "video_not_ready")
    pool.may_finish.set()
    assert (await client.videos.poll(video.id)).status == "completed"


async def test_video_list_has_pages_in_both_orders(
    client: AsyncOpenAI, queue: Queue, store: Store, pool: StandIn
) -> None:
    made = [(await client.videos.create(**a_cat())).id for _ in range(3)]
    newest = [video.id async for video in client.videos.list(limit=2)]
    oldest = [video.id async for video in client.videos.list(limit=2, order="asc")]
    assert newest == made[::-1] and oldest == made
    page = await client.videos.list(after=made[1])
    assert [video.id for video in page.data] == made[:1] and page.has_more is False
    for order in ("asc", "desc"):
        with pytest.raises(NotFoundError) as error:
            await client.videos.list(after="job_none", order=order)
        assert error.value.param == "after"


async def test_image_job_is_not_listed_as_a_video(
    client: AsyncOpenAI, queue: Queue, store: Store
) -> None:
    async with StandIn(queue, store):
        await client.images.generate(prompt="a cat")
        job_id = (await queue.list(limit=1))[0].id
    assert [video async for video in client.videos.list()] == []
    with pytest.raises(NotFoundError) as error:
        await client.videos.retrieve(job_id)
    assert f"/v1/jobs/{job_id}" in error.value.message


async def test_deleted_video_is_not_found(client: AsyncOpenAI, pool: StandIn) -> None:
    video = await client.videos.create_and_poll(**a_cat())
    gone = await client.videos.delete(video.id)
    assert (gone.id, gone.deleted, gone.object) == (video.id, True, "video.deleted")
    with pytest.raises(NotFoundError):
        await client.videos.retrieve(video.id)
    with pytest.raises(NotFoundError):
        await client.videos.delete(video.id)


async def test_a_remix_has_the_same_seed_settings_and_image(
    client: AsyncOpenAI, pool: StandIn
) -> None:
    further = a_cat(num_frames=9, guidance_scale=2.5)
    first = await client.videos.create_and_poll(
        **further, input_reference=("a.png", picture(), "image/png")
    )
    second = await client.videos.remix(first.id, prompt="a dog")
    second = await client.videos.poll(second.id)
    assert second.remixed_from_video_id == first.id and second.prompt == "a dog"
    original, remix = (job.request for job in pool.received)
    differs = {name for name in original if original[name] != remix[name]}
    assert differs == {"prompt", "image"}
    assert await pool.store.get(remix["image"]) == await pool.store.get(original["image"])


async def test_a_failure_is_the_videos_state(client: AsyncOpenAI, pool: StandIn) -> None:
    pool.failure = JobError(code="out_of_memory", message="too large")
    video = await client.videos.create_and_poll(**a_cat())
    assert video.status == "failed" and video.error is not None
    assert (video.error.code, video.error.message) == ("out_of_memory", "too large")
    with pytest.raises(APIStatusError) as error:
        await client.videos.download_content(video.id)
    assert error.value.code == "out_of_memory"


async def test_a_canceled_job_is_a_failed_video(
    client: AsyncOpenAI, pool: StandIn, queue: Queue
) -> None:
    pool.may_finish.clear()
    video = await client.videos.create(**a_cat())
    await queue.cancel(video.id)
    video = await client.videos.retrieve(video.id)
    assert video.status == "failed" and video.error is not None
    assert video.error.code == "job_canceled"


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        ({"size": "100x100"}, "size", "the nearest is 96x96"),
        ({"seconds": 60}, "seconds", "60 s are 481 frames: must be 17 at most"),
        ({"seconds": "long"}, "seconds", "number"),
        ({"seconds": 1, "num_frames": 17}, "num_frames", "also given as seconds"),
        ({"num_images": 2}, "num_images", "one video"),
        (
            {"input_reference": {"file_id": "f"}},
            "input_reference.file_id",
            "references to uploaded files",
        ),
        ({"input_reference": {}}, "input_reference", "image_url"),
        ({"input_reference": {"image_url": "x"}}, "input_reference", "base64"),
        ({"duration": 3}, "duration", "num_frames"),
        ({"seconds": 1, "fps": 10**400}, "fps", "at most 240"),
        ({"seconds": 3600, "fps": 1e308}, "fps", "a whole number"),
    ],
)
async def test_unsupported_request_is_named(
    client: AsyncOpenAI, pool: StandIn, asked: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(BadRequestError) as error:
        await client.post("/videos", body={"prompt": "a cat", **asked}, cast_to=httpx.Response)
    assert error.value.param == param and said in error.value.message


async def test_a_model_of_images_makes_no_videos(
    client: AsyncOpenAI, queue: Queue, store: Store, pool: StandIn
) -> None:
    async with StandIn(queue, store):
        with pytest.raises(BadRequestError) as error:
            await client.videos.create(prompt="a cat", model="flux-demo")
        assert error.value.param == "model"
        with pytest.raises(BadRequestError) as error:
            await client.images.generate(prompt="a cat", model="wan-demo")
        assert "POST /v1/videos" in error.value.message


MLPERF = {
    "prompt": "a cat",
    "size": "96x64",
    "seconds": 1.0,
    "fps": 16,
    "num_inference_steps": 4,
    "guidance_scale": 4.0,
    "seed": 42,
    "output_format": "auto",
}
"""Request of MLPerf's adapter, except for sizes and fields of the model."""


@pytest.mark.parametrize("response_format", ["video_bytes", "video_path"])
async def test_mlperf_gets_bytes_or_a_link(
    wire: httpx.AsyncClient, pool: StandIn, response_format: str
) -> None:
    answer = await wire.post(
        "/v1/videos/generations", json=MLPERF | {"response_format": response_format}
    )
    view = answer.json()
    (job,) = pool.received
    assert view["video_id"] == job.id and job.request["num_frames"] == 17
    if response_format == "video_bytes":
        data = base64.b64decode(view["video_bytes"])
    else:
        data = (await wire.get(view["video_path"])).content
    assert data == clip("mp4", 17, 16)


@pytest.mark.parametrize(
    ("field", "value"), [("latent_path", "/a.pt"), ("output_format", "avi"), ("seconds", -1)]
)
async def test_unsupported_mlperf_field_is_named(
    wire: httpx.AsyncClient, pool: StandIn, field: str, value: Any
) -> None:
    answer = await wire.post("/v1/videos/generations", json=MLPERF | {field: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


async def test_disconnect_does_not_cancel_a_pollable_video(
    client: AsyncOpenAI, pool: StandIn, queue: Queue
) -> None:
    pool.may_finish.clear()
    video = await client.videos.create(**a_cat())
    await pool.has_claimed.wait()
    job = await queue.get(video.id)
    assert job is not None and job.state is JobState.RUNNING
