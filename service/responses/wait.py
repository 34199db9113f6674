"""Waiting for a job beside everything that may end the wait: time, the client, the server."""

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


async def ticking(
    items: AsyncIterator[T], every_s: float, stop: asyncio.Event
) -> AsyncGenerator[T | None, None]:
    """The items as they come, None after each `every_s` without one; ends when `stop` is set."""
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
    """The next item in a box; None at the end."""
    async for item in items:
        return (item,)
    return None


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the work's result; cancel it when the client leaves. The body must be read already.

    Raises: ClientDisconnect.
    """
    doing, left = asyncio.create_task(work), asyncio.create_task(_left(request))
    try:
        await asyncio.wait((doing, left), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        await cancel(doing, left)


async def until_ended(front: FrontEnd, job: Job, wait_s: float, request: Request) -> Job:
    """The job once it has ended, or as it is when time, client or server give up the wait."""
    if not job.state.ended and wait_s > 0:
        give_up = asyncio.create_task(_gone(request, front.stopping))
        ended = asyncio.create_task(front.queue.ended(job.id))
        try:
            await asyncio.wait(
                (ended, give_up), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done() and (found := ended.result()):
                return found
        finally:
            await cancel(ended, give_up)
    return await front.job(job.id, job.tenant)


async def _gone(request: Request, stopping: asyncio.Event) -> None:
    """Returns when the client has left or the server wants to stop."""
    stopped = asyncio.create_task(stopping.wait())
    left = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((stopped, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(stopped, left)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def events_of(front: FrontEnd, job_id: str, after: str) -> AsyncGenerator[Event | None, None]:
    """A job's events, None where a keep-alive is due; ends with the job or the server."""
    every_s = front.settings.server.keep_alive_s
    async with (
        aclosing(front.queue.events(job_id, after)) as events,
        aclosing(ticking(events, every_s, front.stopping)) as ticks,
    ):
        async for event in ticks:
            yield event
