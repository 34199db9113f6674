"""Clients that disconnect while they wait for a job: the setting decides whether the job is
canceled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from service.app import create_app
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.compatible_requests import EXAMPLE_REQUESTS, spec_of
from tests.service.conftest import served
from tests.service.eventually import eventually
from tests.service.standin import StandIn

WAITING = (
    "/hf/{model}",
    "/sdapi/v1/txt2img",
    "/fal/run/{app}",
    "/v1/images/generations",
    "/v1/images/generations as a stream",
    "/v1/videos/generations",
)
"""Requests whose response waits for the job's end."""


@pytest.fixture
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    server = {"cancel_when_left": request.node.callspec.params["cancels"]}
    return settings.model_copy(update={"server": settings.server.model_copy(update=server)})


@pytest.fixture
async def pool(
    request: pytest.FixtureRequest, queue: Queue, store: Store
) -> AsyncIterator[StandIn]:
    """Stand-in worker of the request's model, which holds jobs before their end."""
    async with StandIn(queue, store, spec_of(request.node.callspec.params["name"])) as pool:
        pool.may_finish.clear()
        yield pool


@pytest.mark.parametrize("cancels", [True, False])
@pytest.mark.parametrize("name", WAITING)
async def test_the_setting_is_kept(
    settings: Settings, queue: Queue, store: Store, pool: StandIn, name: str, cancels: bool
) -> None:
    app = create_app(settings, queue, store)
    front: FrontEnd = app.state.front
    async with served(app, settings) as address:
        await _leave(address, name, pool)

        async def is_over() -> bool:
            job = await queue.get(pool.received[0].id)
            assert job is not None
            return not front.waits.all and (job.state is JobState.CANCELED) is cancels

        await eventually(is_over)
        pool.may_finish.set()

        async def has_ended() -> bool:
            job = await queue.get(pool.received[0].id)
            return job is not None and job.state.ended

        await eventually(has_ended)
    job = await queue.get(pool.received[0].id)
    assert job is not None
    assert job.state is (JobState.CANCELED if cancels else JobState.SUCCEEDED)


async def _leave(address: str, name: str, pool: StandIn) -> None:
    """Send the request, and disconnect once its job runs."""
    example = EXAMPLE_REQUESTS[name.split(" ")[0]]
    assert example.json is not None
    body = example.json | ({"stream": True} if name.endswith("stream") else {})
    async with httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as http:
        request = asyncio.create_task(http.post(example.path, json=body))
        await pool.has_claimed.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
