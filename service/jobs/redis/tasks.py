"""Cancellation of asyncio tasks that use Redis."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_AGAIN_S = 0.05


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel asyncio tasks until they end, and retrieve their exceptions.

    One cancellation may be lost: before Python 3.12, `asyncio.wait_for`, through which redis-py
    writes, could swallow it. The tasks have ended even if the caller is canceled meanwhile, which
    anyio does to the streams of clients that leave.
    """
    interrupted: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        interrupted = await _wait(running, CANCEL_AGAIN_S) or interrupted
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if interrupted:
        raise interrupted


async def ended(task: asyncio.Task[T]) -> T:
    """Return a task's result once it has ended, even if the caller is canceled meanwhile.

    For what must be undone after a cancellation; callers raise that again.
    """
    while not task.done():
        await _wait([task])
    return task.result()


async def _wait(
    tasks: list[asyncio.Task[Any]], timeout_s: float | None = None
) -> asyncio.CancelledError | None:
    """Wait for the tasks; return the last cancellation of the caller meanwhile."""
    loop, interrupted = asyncio.get_running_loop(), None
    until = None if timeout_s is None else loop.time() + timeout_s
    while tasks and (until is None or loop.time() < until):
        left_s = None if until is None else until - loop.time()
        try:
            await asyncio.wait(tasks, timeout=left_s)
        except asyncio.CancelledError as error:
            interrupted = error
        tasks = [task for task in tasks if not task.done()]
    return interrupted
