"""Compatible endpoint of Hugging Face, tested by huggingface_hub."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from PIL.Image import Image

from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SIZE_PX, VIDEO, StandIn, clip, picture


@pytest.fixture
def client(wire: httpx.AsyncClient) -> InferenceClient:
    return InferenceClient(model=f"{wire.base_url}/hf/{MODEL}", token="none")


async def test_text_to_image_is_an_ordinary_job(client: InferenceClient, pool: StandIn) -> None:
    image = await asyncio.to_thread(
        client.text_to_image,
        "a cat",
        negative_prompt="a dog",
        width=64,
        height=96,
        num_inference_steps=3,
        guidance_scale=2.5,
        seed=7,
        extra_body={"max_sequence_length": 32},
    )
    assert isinstance(image, Image) and image.size == (SIZE_PX, SIZE_PX)
    (job,) = pool.received
    fields = {name: job.request[name] for name in ("prompt", "negative_prompt", "width", "height")}
    assert fields == {"prompt": "a cat", "negative_prompt": "a dog", "width": 64, "height": 96}
    assert (job.request["seed"], job.request["guidance_scale"], job.steps) == (7, 2.5, 3)
    assert job.request["max_sequence_length"] == 32


async def test_parameters_may_be_null(wire: httpx.AsyncClient, pool: StandIn) -> None:
    answer = await wire.post(f"/hf/{MODEL}", json={"inputs": "a cat", "parameters": None})
    assert answer.status_code == 200, answer.text
    assert pool.received[0].request["prompt"] == "a cat"


async def test_image_to_image_takes_the_image_as_inputs(
    client: InferenceClient, pool: StandIn
) -> None:
    image = picture(size=(64, 64))
    await asyncio.to_thread(
        client.image_to_image, image, prompt="a cat", target_size={"width": 96, "height": 64}
    )
    (job,) = pool.received
    assert (job.request["width"], job.request["height"]) == (96, 64)
    assert await pool.store.get(job.request["image"]) == image


async def test_a_video_is_answered_as_its_file(
    wire: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    async with StandIn(queue, store, VIDEO):
        body: dict[str, Any] = {"inputs": "a cat", "parameters": {"num_frames": 9, "seed": 7}}
        body["options"] = {"wait_for_model": True, "use_cache": False}
        answer = await wire.post(f"/hf/{VIDEO.name}", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "video/mp4")
    assert answer.content == clip("mp4", 9)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP"])
async def test_image_without_a_prompt_has_an_empty_prompt(
    client: InferenceClient, pool: StandIn, file_format: str
) -> None:
    image = picture(file_format, size=(64, 64))
    await asyncio.to_thread(client.image_to_image, image, num_inference_steps=2)
    (job,) = pool.received
    assert job.request["prompt"] == ""
    assert await pool.store.get(job.request["image"]) == image


async def test_error_names_the_sent_field(wire: httpx.AsyncClient, pool: StandIn) -> None:
    async def refused(parameters: dict[str, Any]) -> str:
        body = {"inputs": "a cat", "parameters": parameters}
        answer = await wire.post(f"/hf/{MODEL}", json=body)
        assert answer.status_code == 422
        assert set(answer.json()) == {"error", "code"}
        return str(answer.json()["error"])

    assert (await refused({"width": 10})).startswith("parameters.width: ")
    assert (await refused({"scheduler": "none"})).startswith("parameters.scheduler: ")
    assert (await refused({"num_images": 2})).startswith("parameters.num_images: ")
    assert (await refused({"colour": 2})).startswith("parameters.colour: ")
    image = base64.b64encode(picture()).decode()
    body = {
        "inputs": image,
        "parameters": {"prompt": "a", "target_size": {"width": 1, "height": 64}},
    }
    answer = await wire.post(f"/hf/{MODEL}", json=body)
    assert answer.json()["error"].startswith("parameters.target_size.width: ")


async def test_client_shows_the_error(wire: httpx.AsyncClient, pool: StandIn) -> None:
    unknown = InferenceClient(model=f"{wire.base_url}/hf/nobody", token="none")
    with pytest.raises(HfHubHTTPError) as error:
        await asyncio.to_thread(unknown.text_to_image, "a cat")
    assert f"available: {MODEL}" in str(error.value)


async def test_unknown_path_has_the_same_error_format(wire: httpx.AsyncClient) -> None:
    answer = await wire.get("/hf")
    assert answer.status_code == 404 and set(answer.json()) == {"error", "code"}


@pytest.mark.parametrize("key", [None, "mine"])
async def test_disconnected_client_cancels_its_job_without_idempotency_key(
    wire: httpx.AsyncClient, queue: Queue, pool: StandIn, key: str | None
) -> None:
    pool.may_finish.clear()
    headers = {"Idempotency-Key": key} if key else {}
    request = asyncio.create_task(wire.post(f"/hf/{MODEL}", json={"inputs": "a"}, headers=headers))
    await pool.has_claimed.wait()
    request.cancel()
    job_id = pool.received[0].id

    async def is_canceled() -> bool:
        job = await queue.get(job_id)
        return job is not None and job.state is JobState.CANCELED

    async def is_done() -> bool:
        job = await queue.get(job_id)
        return job is not None and job.state is JobState.SUCCEEDED

    if key is None:
        await eventually(is_canceled)
    else:
        pool.may_finish.set()
        await eventually(is_done)
