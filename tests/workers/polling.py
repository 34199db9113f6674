"""Waiting for another thread or process: by a condition and a deadline, never by a fixed pause."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

DEADLINE_S = 240
"""Deadline of any wait, including compilation on two cores with ten times as much work.

A test's own timeout (`pyproject.toml`) is slightly longer.
"""
POLL_S = 0.005


async def until(
    condition: Callable[[], bool | Awaitable[bool]], deadline_s: float = DEADLINE_S
) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: The condition is still false at the deadline.
    """
    async with asyncio.timeout(deadline_s):
        while True:
            result = condition()
            if await result if inspect.isawaitable(result) else result:
                return
            await asyncio.sleep(POLL_S)
