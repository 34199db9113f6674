"""White space that keeps a waiting client's connection open, ahead of JSON and of late errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from webuiapi import WebUIApi

from service.front_end.front_end import FrontEnd
from service.jobs.model.job import JobError, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.compatible_requests import EXAMPLE_REQUESTS, spec_of
from tests.service.conftest import served
from tests.service.eventually import eventually
from tests.service.openai_clients import openai_client
from tests.service.standin import MODEL, StandIn

IMAGES = "/v1/images/generations"
PADDED = {
    "/sdapi/v1/txt2img": "images",
    "/fal/run/{app}": "images",
    IMAGES: "data",
    "/v1/chat/completions": "choices",
    "/v1/responses": "output",
    "/v1/videos/generations": "video_bytes",
}
"""Endpoints that wait for a job and respond with JSON, and a member of their result."""
ERRORS = {
    "/sdapi/v1/txt2img": lambda body: body["detail"],
    "/fal/run/{app}": lambda body: body["detail"],
    IMAGES: lambda body: body["error"]["message"],
    "/v1/chat/completions": lambda body: body["error"]["message"],
    "/v1/responses": lambda body: body["error"]["message"],
    "/v1/videos/generations": lambda body: body["error"]["message"],
}
"""Message in each endpoint's error format."""
FAILURE = JobError(code="internal", message="the worker crashed")
SOON_S = 0.02
LATER_S = 300.0
"""Interval that no test reaches."""


@pytest.fixture
def every_s() -> float:
    """Interval of the white space, which a test may override by its parameters."""
    return SOON_S


@pytest.fixture
def settings(settings: Settings, every_s: float) -> Settings:
    server = settings.server.model_copy(update={"json_keep_alive_s": every_s})
    return settings.model_copy(update={"server": server})


@pytest.fixture
async def address(app: FastAPI, settings: Settings) -> AsyncIterator[str]:
    async with served(app, settings) as address:
        yield address


@asynccontextmanager
async def holding(queue: Queue, store: Store, name: str = IMAGES) -> AsyncIterator[StandIn]:
    """Run a stand-in worker that holds jobs before their end."""
    async with StandIn(queue, store, spec_of(name)) as pool:
        pool.may_finish.clear()
        yield pool


@asynccontextmanager
async def padded(address: str, name: str) -> AsyncIterator[tuple[httpx.Response, AsyncIterator]]:
    """Send a request, and yield its response after the first white space."""
    example = EXAMPLE_REQUESTS[name]
    async with (
        httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as http,
        http.stream("POST", example.path, json=example.json) as response,
    ):
        parts = response.aiter_raw()
        assert (await anext(parts)).strip() == b""
        yield response, parts


async def rest(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


@pytest.mark.parametrize("name", PADDED)
async def test_white_space_arrives_before_the_result(
    address: str, queue: Queue, store: Store, name: str
) -> None:
    async with holding(queue, store, name) as pool, padded(address, name) as (response, parts):
        pool.may_finish.set()
        body = json.loads(await rest(parts))
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-job-id"] == pool.received[0].id
        assert "content-length" not in response.headers
        assert body[PADDED[name]]


@pytest.mark.parametrize("name", PADDED)
async def test_a_late_error_is_in_the_body_and_counted(
    address: str, queue: Queue, store: Store, name: str
) -> None:
    async with holding(queue, store, name) as pool, padded(address, name) as (response, parts):
        pool.failure = FAILURE
        pool.may_finish.set()
        body = json.loads(await rest(parts))
        assert response.status_code == 200
        assert ERRORS[name](body) == FAILURE.message
    async with httpx.AsyncClient(base_url=address, trust_env=False) as http:
        page = (await http.get("/metrics")).text
    counts = {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in ("atelier_http_requests_total", "atelier_api_requests_total")
    }
    assert {key: n for key, n in counts.items() if "POST" in key} == {("POST", name, "500"): 1}
    assert counts["generate", "failed"] == 1 and counts["generate", "answered"] == 0


@pytest.mark.parametrize("every_s", [0.0, LATER_S])
@pytest.mark.parametrize("name", PADDED)
async def test_an_error_before_white_space_has_its_status(
    address: str, queue: Queue, store: Store, name: str
) -> None:
    async with StandIn(queue, store, spec_of(name)) as pool:
        pool.failure = FAILURE
        example = EXAMPLE_REQUESTS[name]
        async with httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as http:
            response = await http.post(example.path, json=example.json)
    assert response.status_code == 500 and response.content.startswith(b"{")
    assert int(response.headers["content-length"]) == len(response.content)


async def test_a_prediction_is_padded_with_its_own_status(
    address: str, queue: Queue, store: Store
) -> None:
    body = {"version": f"atelier/{MODEL}", "input": {"prompt": "a"}}
    async with (
        holding(queue, store) as pool,
        httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as http,
        http.stream("POST", "/v1/predictions", json=body, headers={"Prefer": "wait"}) as response,
    ):
        parts = response.aiter_raw()
        assert (await anext(parts)).strip() == b""
        pool.may_finish.set()
        assert json.loads(await rest(parts))["status"] == "succeeded"
        assert response.status_code == 201


async def test_a_binary_response_is_not_padded(address: str, queue: Queue, store: Store) -> None:
    async with holding(queue, store) as pool:
        example = EXAMPLE_REQUESTS["/hf/{model}"]
        async with httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as http:
            waiting = asyncio.create_task(http.post(example.path, json=example.json))
            async with padded(address, IMAGES):  # which the same interval pads
                assert not waiting.done()
            pool.failure = FAILURE
            pool.may_finish.set()
            assert (await waiting).status_code == 500


async def test_client_that_disconnects_during_padding_cancels_its_job(
    app: FastAPI, address: str, queue: Queue, store: Store
) -> None:
    front: FrontEnd = app.state.front

    async def is_canceled() -> bool:
        job = await queue.get(pool.received[0].id)
        return job is not None and job.state is JobState.CANCELED and not front.waits.all

    async with holding(queue, store) as pool:
        async with padded(address, IMAGES):
            await pool.has_claimed.wait()
            assert front.waits.all == 1
        await eventually(is_canceled)
        pool.may_finish.set()


async def test_a_connection_is_reused_after_padding(
    address: str, queue: Queue, store: Store
) -> None:
    example = EXAMPLE_REQUESTS[IMAGES]
    limits = httpx.Limits(max_connections=1)
    async with (
        holding(queue, store) as pool,
        httpx.AsyncClient(base_url=address, timeout=30, trust_env=False, limits=limits) as http,
    ):
        async with http.stream("POST", example.path, json=example.json) as response:
            stream = response.extensions["network_stream"]
            parts = response.aiter_raw()
            await anext(parts)
            pool.may_finish.set()
            await rest(parts)
        second = await http.get("/healthz")
    assert second.extensions["network_stream"] is stream


@pytest.mark.parametrize("failure", [None, FAILURE], ids=["result", "error"])
async def test_openai_s_client_reads_padded_json(
    address: str, queue: Queue, store: Store, failure: JobError | None
) -> None:
    async with (
        holding(queue, store) as pool,
        openai_client(address) as client,
        client.images.with_streaming_response.generate(
            prompt="a cat", model=MODEL, size="64x64"
        ) as response,
    ):
        pool.failure = failure
        pool.may_finish.set()
        images = await response.parse()
        if failure is None:
            assert images.data and images.data[0].b64_json
        else:
            assert images.data is None and images.model_extra
            assert images.model_extra["error"]["message"] == failure.message


async def test_a1111_s_client_reads_padded_json(address: str, queue: Queue, store: Store) -> None:
    loop = asyncio.get_running_loop()

    def generate(pool: StandIn) -> tuple[int, int]:
        def finish(*_: object, **__: object) -> None:  # called once the headers are there
            loop.call_soon_threadsafe(pool.may_finish.set)

        api = WebUIApi(baseurl=f"{address}/sdapi/v1", sampler="Euler", steps=3)
        api.session.hooks["response"].append(finish)
        size: tuple[int, int] = api.txt2img(prompt="a cat", width=64, height=64).image.size
        return size

    async with holding(queue, store) as pool:
        assert await asyncio.to_thread(generate, pool) == (32, 32)
