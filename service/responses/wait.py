"""Wait for a job or its events until it ends, time is over, or the client or server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from service.front_end.front_end import FrontEnd
from service.jobs.model.job import Job
from service.jobs.queue import Event
from service.jobs.redis.tasks import cancel

T = TypeVar("T")


async def with_keep_alives(
    items: AsyncIterator[T], every_s: float, stop: asyncio.Event
) -> AsyncGenerator[T | None, None]:
    """Yield the items of an event stream, and None after each `every_s` seconds without an item.

    Ends when `stop` is set.
    """
    stopped = asyncio.create_task(stop.wait())
    upcoming = asyncio.create_task(_next(items))
    try:
        while not stop.is_set():
            await asyncio.wait(
                (upcoming, stopped), timeout=every_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not upcoming.done():
                if not stop.is_set():
                    yield None
                continue
            if not (item := upcoming.result()):
                return
            yield item[0]
            upcoming = asyncio.create_task(_next(items))
    finally:
        await cancel(stopped, upcoming)


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    """Return the next item of an asynchronous iterator in a 1-tuple; None at the end."""
    async for item in items:
        return (item,)
    return None


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the coroutine's result, or cancel it when the client disconnects.

    The request body must have been read.

    Raises: ClientDisconnect.
    """
    working, disconnected = (
        asyncio.create_task(work),
        asyncio.create_task(_wait_for_disconnect(request)),
    )
    try:
        await asyncio.wait((working, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        await cancel(working, disconnected)


async def wait_until_ended(front: FrontEnd, job: Job, wait_s: float, request: Request) -> Job:
    """Return the job once it ends, or unfinished on timeout, disconnection or server shutdown."""
    if not job.state.ended and wait_s > 0:
        give_up = asyncio.create_task(_wait_for_disconnect_or_stop(request, front.stopping))
        ended = asyncio.create_task(front.queue.ended(job.id))
        try:
            await asyncio.wait(
                (ended, give_up), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done() and (ended_job := ended.result()):
                return ended_job
        finally:
            await cancel(ended, give_up)
    return await front.job(job.id, job.tenant)


async def _wait_for_disconnect_or_stop(request: Request, stopping: asyncio.Event) -> None:
    """Wait until the client disconnects or the server begins to stop."""
    stopped = asyncio.create_task(stopping.wait())
    disconnected = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait((stopped, disconnected), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(stopped, disconnected)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def events_of(front: FrontEnd, job_id: str, after: str) -> AsyncGenerator[Event | None, None]:
    """Yield a job's events, and None when a keep-alive is due, until the job or server ends."""
    every_s = front.settings.server.keep_alive_s
    async with (
        aclosing(front.queue.events(job_id, after)) as events,
        aclosing(with_keep_alives(events, every_s, front.stopping)) as ticks,
    ):
        async for event in ticks:
            yield event
