"""Inline files in jobs and events: they count while they are sent, and are omitted beyond the
limit."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers

from service.front_end.front_end import FrontEnd
from service.http.inflight_limits import Hold
from service.jobs.queue import Queue
from service.responses.render import events_answer
from service.settings.settings import Settings
from tests.service.sse import messages
from tests.service.standin import MODEL, StandIn, picture

CAT = {"prompt": "a cat", "model": MODEL, "output": {"inline": True}}
WAIT = {"Prefer": "wait"}
FILE = base64.b64encode(picture()).decode()
CLIENT = "127.0.0.1"


@pytest.fixture
def front(app: FastAPI) -> FrontEnd:
    front: FrontEnd = app.state.front
    return front


@pytest.fixture
async def job(http: httpx.AsyncClient, pool: StandIn) -> Any:
    """A finished job."""
    return (await http.post("/v1/generate", json=CAT, headers=WAIT)).json()


def all_bytes(front: FrontEnd, client: str) -> Hold:
    hold = front.bodies.hold(client)
    hold.add(front.settings.limits.max_inflight_bytes)
    return hold


def is_without_file(job: Any) -> bool:
    warned = [
        (warning["field"], "fetch each from its `url`" in warning["message"])
        for warning in job["warnings"]
    ]
    (output,) = job["outputs"]
    return warned == [("output.inline", True)] and output["base64"] is None and bool(output["url"])


async def test_inline_file_counts_until_the_client_received_it(
    front: FrontEnd, queue: Queue, job: Any
) -> None:
    current = await queue.get(job["id"])
    assert current
    with front.waits.holding(CLIENT, 1) as waiting:
        answer = events_answer(front, current, Headers(), waiting)
    assert front.waits.held_by(CLIENT) == 1
    held = {}
    async for part in answer.body_iterator:
        if part:
            held[bytes(part).splitlines()[1]] = front.bodies.held_by(CLIENT)
        else:
            assert front.bodies.held_by(CLIENT) == held.get(b"event: succeeded", 0)
    assert held[b"event: queued"] == 0 and held[b"event: succeeded"] == len(FILE)
    assert front.bodies.all == front.waits.all == 0


async def test_unread_stream_reserves_nothing(front: FrontEnd, queue: Queue, job: Any) -> None:
    current = await queue.get(job["id"])
    assert current
    with front.waits.holding(CLIENT, 1) as waiting:
        answer = events_answer(front, current, Headers(), waiting)
    del answer
    assert front.waits.all == 0


async def test_last_event_omits_a_file_above_the_limit(
    front: FrontEnd, http: httpx.AsyncClient, job: Any
) -> None:
    async def last() -> Any:
        async with http.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            (*_, end) = [message async for message in messages(answer)]
        assert end.name == "succeeded" and end.data["id"] == job["id"]
        return end.data

    others = all_bytes(front, "another")
    assert is_without_file(await last())
    others.close()
    assert (await last())["outputs"][0]["base64"] == FILE


async def test_waiting_client_gets_its_job_without_the_file(
    front: FrontEnd, http: httpx.AsyncClient, pool: StandIn
) -> None:
    pool.may_finish.clear()
    key = {"Idempotency-Key": "k"}
    waiting = asyncio.create_task(http.post("/v1/generate", json=CAT, headers=WAIT | key))
    await pool.has_claimed.wait()
    others = all_bytes(front, "another")
    pool.may_finish.set()
    answer = await waiting
    assert answer.status_code == 200 and is_without_file(answer.json())
    others.close()
    repeated = await http.post("/v1/generate", json=CAT, headers=key)
    assert repeated.json()["id"] == answer.json()["id"] and repeated.json()["warnings"] == []
    assert repeated.json()["outputs"][0]["base64"] == FILE


async def test_inline_bytes_count_per_client_without_keys(
    front: FrontEnd, http: httpx.AsyncClient, job: Any
) -> None:
    share = front.settings.limits.max_inflight_bytes // 2
    url = f"/v1/jobs/{job['id']}"
    with front.bodies.holding("default", share):
        assert (await http.get(url)).status_code == 200
    with front.bodies.holding(CLIENT, share):
        assert (await http.get(url)).status_code == 429
        assert (await http.post(f"{url}/cancel")).status_code == 429


async def test_stream_stops_at_a_store_failure_and_resumes(
    http: httpx.AsyncClient, settings: Settings, job: Any
) -> None:
    async def names() -> list[str]:
        async with http.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            return [message.name async for message in messages(answer)]

    folder = settings.state_dir / "outputs" / "outputs"
    away = folder.rename(folder.with_name("away"))
    folder.write_text("no folder any more")
    broken_off = await names()
    assert broken_off[-1] == "progress"
    folder.unlink()
    away.rename(folder)
    assert await names() == [*broken_off, "succeeded"]
