"""Iteration with ticks in between, until a stop event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from service.jobs.redis.tasks import cancel
from service.responses.wait import with_keep_alives

LONG_S = 60.0


async def slowly(gates: list[asyncio.Event]) -> AsyncIterator[int]:
    for number, gate in enumerate(gates):
        await gate.wait()
        yield number


async def test_keep_alives_are_yielded_between_items() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    gates[0].set()
    received = []
    async for item in with_keep_alives(slowly(gates), 0.01, asyncio.Event()):
        received.append(item)
        if received.count(None) == 2:
            gates[1].set()
    assert [item for item in received if item is not None] == [0, 1]
    assert received[:3] == [0, None, None]


async def test_stop_event_ends_the_wait_at_once() -> None:
    stop = asyncio.Event()
    never = slowly([asyncio.Event()])
    asyncio.get_running_loop().call_later(0.01, stop.set)
    async with asyncio.timeout(LONG_S / 2):
        assert [item async for item in with_keep_alives(never, LONG_S, stop)] == []


async def test_error_of_the_items_is_raised() -> None:
    async def failing() -> AsyncIterator[int]:
        yield 1
        raise ValueError("broken")

    received = []
    try:
        async for item in with_keep_alives(failing(), LONG_S, asyncio.Event()):
            received.append(item)
    except ValueError as error:
        received.append(str(error))
    assert received == [1, "broken"]


async def test_lost_cancellation_of_a_task_is_repeated() -> None:
    async def deaf_once() -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            await asyncio.sleep(LONG_S)

    task = asyncio.create_task(deaf_once())
    await asyncio.sleep(0)
    async with asyncio.timeout(LONG_S / 2):
        await cancel(task)
    assert task.cancelled()
