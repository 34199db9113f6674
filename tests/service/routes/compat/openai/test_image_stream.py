"""Streams of images, tested by the OpenAI SDK."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from fastapi import FastAPI
from openai import APIError, AsyncOpenAI, AsyncStream
from starlette.types import Message

from service.jobs.model.job import JobError, JobState
from service.jobs.queue import Queue
from service.jobs.redis.keys import PREFIX
from service.routes.compat.openai.image_stream import PartialImages
from tests.service.eventually import eventually
from tests.service.standin import StandIn, picture


async def read(stream: AsyncStream[Any], pool: StandIn, partial: int) -> list[Any]:
    """Return the events of a job that ends after `partial` events, when its previews are
    deleted."""
    events: list[Any] = []
    if not partial:
        pool.may_finish.set()
    async for event in stream:
        events.append(event)
        if len(events) == partial:
            pool.may_finish.set()
    return events


@pytest.mark.parametrize("wanted", [0, 1, 3])
async def test_partial_images_come_before_the_finished_one(
    client: AsyncOpenAI, pool: StandIn, wanted: int
) -> None:
    pool.may_finish.clear()
    stream = await client.images.generate(
        prompt="a cat",
        stream=True,
        partial_images=wanted,
        extra_body={"num_inference_steps": 8},
    )
    events = await read(stream, pool, wanted)
    assert [event.type for event in events] == [
        *["image_generation.partial_image"] * wanted,
        "image_generation.completed",
    ]
    *partial, last = events
    indices = [getattr(event, "partial_image_index") for event in partial]  # noqa: B009
    assert indices == list(range(wanted))
    assert base64.b64decode(last.b64_json) == picture()
    assert last.type == "image_generation.completed" and last.usage.output_tokens == 6 * 4
    assert (last.size, last.output_format) == ("96x64", "png")
    assert pool.received[0].previews == wanted  # made by the worker however short the job is


async def test_an_edit_has_events_of_its_own(client: AsyncOpenAI, pool: StandIn) -> None:
    pool.may_finish.clear()
    stream = await client.images.edit(
        image=("a.png", picture(), "image/png"), prompt="a cat", stream=True, partial_images=1
    )
    kinds = [event.type for event in await read(stream, pool, 1)]
    assert kinds == ["image_edit.partial_image", "image_edit.completed"]


async def test_each_image_of_several_has_its_event(client: AsyncOpenAI, pool: StandIn) -> None:
    stream = await client.images.generate(prompt="a cat", n=2, stream=True)
    assert len([event async for event in stream]) == 2


@pytest.mark.parametrize("is_begun", [True, False], ids=["while it waits", "before it begins"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/images/generations", {"prompt": "a cat"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a cat"}]}),
        ("/v1/responses", {"input": "a cat", "tools": [{"type": "image_generation"}]}),
    ],
)
async def test_a_client_that_leaves_before_the_first_event_cancels_its_job(
    app: FastAPI, queue: Queue, pool: StandIn, path: str, body: dict[str, Any], is_begun: bool
) -> None:
    """A client that reads nothing leaves before the stream's events are begun."""
    pool.may_finish.clear()
    sent = json.dumps({**body, "stream": True}).encode()
    messages = [{"type": "http.request", "body": sent}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        """Discard the message, as servers do for a client that has left."""
        if not is_begun:
            await asyncio.Event().wait()

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        **{"type": "http", "method": "POST", "path": path, "raw_path": path.encode()},
        **{"headers": headers, "query_string": b"", "http_version": "1.1", "scheme": "http"},
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": ""},
    }
    await app(scope, receive, send)

    async def is_canceled() -> bool:
        (job_id,) = await queue.redis.zrange(f"{PREFIX}jobs", 0, -1)
        job = await queue.get(job_id)
        return job is not None and job.state is JobState.CANCELED

    await eventually(is_canceled)
    assert not app.state.front.waits.all


async def test_a_failure_is_raised_by_the_client(client: AsyncOpenAI, pool: StandIn) -> None:
    pool.failure = JobError(code="non_finite", message="it broke")
    stream = await client.images.generate(prompt="a cat", stream=True)
    with pytest.raises(APIError, match="it broke") as error:
        async for _ in stream:
            pass
    assert error.value.code == "non_finite"


@pytest.mark.parametrize("key", [None, "mine"])
async def test_disconnected_stream_cancels_its_job_without_idempotency_key(
    client: AsyncOpenAI, pool: StandIn, queue: Queue, key: str | None
) -> None:
    pool.may_finish.clear()
    headers = {"Idempotency-Key": key} if key else {}
    stream = await client.images.generate(
        prompt="a cat", stream=True, partial_images=1, extra_headers=headers
    )
    await anext(aiter(stream))
    await stream.close()
    job_id = pool.received[0].id

    async def has_ended() -> bool:
        job = await queue.get(job_id)
        return job is not None and job.state is (JobState.SUCCEEDED if key else JobState.CANCELED)

    if key:
        pool.may_finish.set()
    await eventually(has_ended)


def test_previews_are_spread_over_the_steps() -> None:
    partials = PartialImages(3)
    assert [step for step in range(1, 29) if partials.takes(step, 28)] == [7, 14, 21]
    late = PartialImages(2)
    assert [step for step in (20, 28) if late.takes(step, 30)] == [20, 28]
