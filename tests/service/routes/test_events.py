"""Event streams over real sockets."""

from __future__ import annotations

import asyncio

import httpx

from service.jobs.queue import Queue
from tests.service.sse import Message, messages
from tests.service.standin import MODEL, SPEC, StandIn

CAT = {"prompt": "a cat", "model": MODEL}
STREAM = {"Accept": "text/event-stream"}


async def events(response: httpx.Response) -> list[Message]:
    return [message async for message in messages(response) if message.name != ":"]


async def test_a_request_can_be_answered_with_its_events(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    async with wire.stream("POST", "/v1/generate", json=CAT, headers=STREAM) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        received = await events(response)
    names = [event.name for event in received]
    assert names[:2] == ["queued", "running"] and names[-1] == "succeeded"
    assert names.count("progress") == 4 and "preview" not in names[-1:]
    assert [int(event.id) for event in received] == sorted({int(event.id) for event in received})
    job_id = response.headers["x-job-id"]
    assert {event.data["id"] for event in received} == {job_id}
    steps = [event.data["step"] for event in received if event.name == "progress"]
    assert steps == [1, 2, 3, 4]
    assert received[-1].data["outputs"][0]["url"] == f"/v1/jobs/{job_id}/outputs/0"


async def test_previews_are_streamed_while_the_job_runs(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    pool.may_finish.clear()
    async with wire.stream("POST", "/v1/generate", json=CAT, headers=STREAM) as response:
        async for event in messages(response):
            if event.name == "preview":
                assert event.data["preview"].startswith("data:image/png;base64,")
                pool.may_finish.set()
                break
        else:
            raise AssertionError("the stream ended without a preview")


async def test_a_stream_resumes_after_the_last_event(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    job = (await wire.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})).json()
    url = f"/v1/jobs/{job['id']}/events"
    async with wire.stream("GET", url) as response:
        every = await events(response)
    async with wire.stream("GET", url, headers={"Last-Event-ID": every[2].id}) as response:
        rest = await events(response)
    assert rest == every[3:]


async def test_resuming_after_the_last_event_is_empty(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    job = (await wire.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})).json()
    url = f"/v1/jobs/{job['id']}/events"
    async with wire.stream("GET", url) as response:
        last = (await events(response))[-1]
    async with wire.stream("GET", url, headers={"Last-Event-ID": last.id}) as response:
        assert await events(response) == []


async def test_a_quiet_stream_is_kept_alive(wire: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("cold", SPEC, ready=False)
    async with wire.stream("POST", "/v1/generate", json=CAT, headers=STREAM) as response:
        received: list[str] = []
        async for message in messages(response):
            received.append(message.name)
            if len(received) == 3:
                break
    assert received == ["queued", ":", ":"]


async def test_a_stream_of_no_job_is_a_problem(wire: httpx.AsyncClient) -> None:
    response = await wire.get("/v1/jobs/job_none/events")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


async def test_a_deleted_job_ends_its_streams(wire: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("cold", SPEC, ready=False)
    async with wire.stream("POST", "/v1/generate", json=CAT, headers=STREAM) as response:
        stream = messages(response)
        assert (await anext(stream)).name == "queued"
        await wire.delete(f"/v1/jobs/{response.headers['x-job-id']}")
        names = [message.name async for message in stream if message.name != ":"]
    assert names == ["canceled"]


async def test_event_stream_disconnect_does_not_cancel_the_job(
    wire: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    pool.may_finish.clear()
    waiting = asyncio.create_task(
        wire.post("/v1/generate", json=CAT, headers={"Accept": "image/png"})
    )
    await pool.has_claimed.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    pool.may_finish.set()
    names = [event.name async for event in queue.events(pool.received[0].id)]
    assert names[-1] == "succeeded"
