"""Blocking calls through real proxies outlive the proxies' timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.compatible_requests import EXAMPLE_REQUESTS
from tests.service.conftest import served
from tests.service.eventually import eventually
from tests.service.routes.compat.proxies import PROXIES, Pauses, behind
from tests.service.standin import StandIn

SHORT_S, LONG_S = 2, 5
"""Timeouts of the proxies, twenty times the server's interval and more."""
INTERVAL_S = 0.1
JSON = ("/v1/images/generations", "/sdapi/v1/txt2img", "/fal/run/{app}")
BINARY = "/hf/{model}"
GATEWAY_TIMEOUT = 504
TRIES = 5
MANY = 100


@pytest.fixture
def settings(settings: Settings) -> Settings:
    intervals = {"json_keep_alive_s": INTERVAL_S, "keep_alive_s": INTERVAL_S}
    return settings.model_copy(update={"server": settings.server.model_copy(update=intervals)})


@pytest.fixture(params=PROXIES)
def proxy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if PROXIES[name].executable is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture
async def http(
    app: FastAPI, settings: Settings, proxy: str, timeout_s: float, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client of the server that is behind the proxy."""
    async with (
        served(app, settings) as address,
        behind(PROXIES[proxy], address, timeout_s, tmp_path) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http,
    ):
        yield http


@pytest.mark.parametrize("timeout_s", [SHORT_S, pytest.param(LONG_S, marks=pytest.mark.nightly)])
async def test_calls_survive_the_proxy_timeout(
    http: httpx.AsyncClient, queue: Queue, store: Store, timeout_s: float
) -> None:
    """Repeated if the server paused for so long that the proxy may have considered it
    unavailable."""
    for _ in range(TRIES):
        async with Pauses() as pauses:
            responses = await _beyond_the_timeout(http, queue, store)
        if pauses.longest_s < timeout_s / 2:
            break
    *bodies, stream = responses
    assert [response.status_code for response in responses] == [200] * len(responses)
    assert [set(body.json()) & {"data", "images"} for body in bodies] == [
        {"data"},
        {"images"},
        {"images"},
    ]
    assert "event: image_generation.completed" in stream.text


async def _beyond_the_timeout(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> list[httpx.Response]:
    """Hold jobs until the proxy has ended a request that it received after theirs.

    So the proxy's own clock tells when its timeout is over.
    """
    earlier = len(await queue.list(limit=MANY))
    async with StandIn(queue, store) as pool:
        pool.may_finish.clear()
        waiting = [asyncio.create_task(_post(http, name)) for name in JSON]
        waiting.append(asyncio.create_task(_stream(http)))
        await eventually(lambda: _has_jobs(queue, earlier + len(waiting)))
        silent = await _post(http, BINARY)
        assert silent.status_code == GATEWAY_TIMEOUT
        await eventually(lambda: _is_canceled(queue))
        pool.may_finish.set()
        return [await task for task in waiting]


@pytest.mark.parametrize("timeout_s", [SHORT_S])
async def test_white_space_passes_a_proxy_at_once(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    """Other proxies in front of this one receive it, too."""
    example = EXAMPLE_REQUESTS[JSON[0]]
    async with StandIn(queue, store) as pool:
        pool.may_finish.clear()
        async with http.stream("POST", example.path, json=example.json) as response:
            assert (await anext(response.aiter_raw())).strip() == b""
            pool.may_finish.set()


async def _post(http: httpx.AsyncClient, name: str) -> httpx.Response:
    example = EXAMPLE_REQUESTS[name]
    return await http.post(example.path, json=example.json)


async def _stream(http: httpx.AsyncClient) -> httpx.Response:
    example = EXAMPLE_REQUESTS[JSON[0]]
    assert example.json
    return await http.post(example.path, json=example.json | {"stream": True})


async def _has_jobs(queue: Queue, count: int) -> bool:
    return len(await queue.list(limit=MANY)) == count


async def _is_canceled(queue: Queue) -> bool:
    """Return whether the newest job, whose client the proxy has given up, is canceled."""
    (job, *_) = await queue.list(limit=1)
    return job.state is JobState.CANCELED
