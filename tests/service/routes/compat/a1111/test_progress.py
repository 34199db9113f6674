"""Progress and interruption of a client's own jobs, tested by webuiapi."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from webuiapi import WebUIApi

from service.auth.api_keys import ApiKeys
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from tests.service.eventually import eventually
from tests.service.routes.compat.keyed import Keyed
from tests.service.standin import StandIn

PATH = "/sdapi/v1/txt2img"
PROGRESS = "/sdapi/v1/progress"


async def test_progress_without_jobs(api: WebUIApi, pool: StandIn) -> None:
    await asyncio.to_thread(api.util_wait_for_ready)
    progress = await asyncio.to_thread(api.get_progress)
    assert (progress["progress"], progress["current_image"]) == (0, None)
    assert await asyncio.to_thread(api.interrupt) == {}
    assert await asyncio.to_thread(api.skip) is None


async def test_progress_has_a_preview_and_ends_with_the_job(
    api: WebUIApi, wire: httpx.AsyncClient, pool: StandIn
) -> None:
    pool.may_finish.clear()
    body = {"prompt": "a", "steps": 4}
    request = asyncio.create_task(wire.post(PATH, json=body))
    await pool.has_claimed.wait()

    async def is_told() -> bool:
        return bool((await asyncio.to_thread(api.get_progress))["progress"] == 1.0)

    await eventually(is_told)
    progress = await asyncio.to_thread(api.get_progress)
    assert progress["current_image"] == "AA=="
    state = progress["state"]
    assert (state["sampling_step"], state["sampling_steps"], state["job_count"]) == (4, 4, 1)
    bare = (await wire.get(PROGRESS, params={"skip_current_image": True})).json()
    assert bare["current_image"] is None and bare["progress"] == 1.0
    pool.may_finish.set()
    assert (await request).status_code == 200
    assert (await asyncio.to_thread(api.get_progress))["state"]["job_count"] == 0


@pytest.mark.parametrize("way", ["interrupt", "skip"])
async def test_a_job_is_interrupted(
    api: WebUIApi, wire: httpx.AsyncClient, pool: StandIn, queue: Queue, way: str
) -> None:
    pool.may_finish.clear()
    request = asyncio.create_task(wire.post(PATH, json={"prompt": "a"}))
    await pool.has_claimed.wait()
    await asyncio.to_thread(getattr(api, way))
    answer = await request
    assert answer.status_code == 409 and answer.json()["error"] == "job_canceled"
    job = await queue.get(pool.received[0].id)
    assert job is not None and job.state is JobState.CANCELED
    pool.may_finish.set()


async def test_skipping_one_of_several_images_is_rejected(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    pool.may_finish.clear()
    request = asyncio.create_task(wire.post(PATH, json={"prompt": "a", "n_iter": 2}))
    await pool.has_claimed.wait()
    answer = await wire.post("/sdapi/v1/skip")
    assert answer.status_code == 422 and "interrupt" in answer.json()["detail"]
    pool.may_finish.set()
    assert (await request).status_code == 200


class TestOfOthers(Keyed):
    @pytest.mark.parametrize("tenant", ["acme", "zoo"])
    async def test_other_keys_cannot_read_or_interrupt_a_job(
        self, wire: httpx.AsyncClient, keys: ApiKeys, pool: StandIn, tenant: str
    ) -> None:
        """Another key of the same tenant has no access either."""
        pool.may_finish.clear()
        owner = ("a", (await keys.create("acme"))[1])
        other = ("a", (await keys.create(tenant))[1])
        request = asyncio.create_task(wire.post(PATH, json={"prompt": "a"}, auth=owner))
        await pool.has_claimed.wait()
        assert (await wire.get(PROGRESS, auth=owner)).json()["state"]["job_count"] == 1
        progress = (await wire.get(PROGRESS, auth=other)).json()
        assert (
            progress["state"]["job_count"],
            progress["progress"],
            progress["current_image"],
        ) == (0, 0, None)
        assert (await wire.post("/sdapi/v1/interrupt", auth=other)).status_code == 200
        pool.may_finish.set()
        assert (await request).status_code == 200
