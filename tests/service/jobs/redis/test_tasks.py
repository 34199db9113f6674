"""Cancellation of tasks by a caller that is itself canceled meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from service.jobs.redis.tasks import cancel, ended


async def waits_after_cancellation(has_ended: asyncio.Event) -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        for _ in range(3):
            await asyncio.sleep(0)
    has_ended.set()
    return "ended"


async def canceled_often(task: asyncio.Task[object]) -> None:
    """Cancel a task at each turn of the event loop, as anyio does, until it ends."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


async def test_canceled_tasks_end_although_their_caller_is_canceled() -> None:
    has_ended = asyncio.Event()
    task = asyncio.create_task(waits_after_cancellation(has_ended))
    await asyncio.sleep(0)
    caller = asyncio.create_task(cancel(task))
    await asyncio.sleep(0)
    await canceled_often(caller)
    assert caller.cancelled() and has_ended.is_set()


async def test_result_is_awaited_although_the_caller_is_canceled() -> None:
    may_end = asyncio.Event()

    async def work() -> str:
        await may_end.wait()
        return "result"

    caller = asyncio.create_task(ended(asyncio.create_task(work())))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    may_end.set()
    assert await caller == "result"


async def test_errors_of_canceled_tasks_are_retrieved() -> None:
    async def fails() -> None:
        raise ValueError

    await cancel(asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(1000)))
    with pytest.raises(ValueError):
        await ended(asyncio.create_task(fails()))
