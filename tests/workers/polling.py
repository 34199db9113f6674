"""Waiting for what another thread or process does: a condition and a deadline, never a pause."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

DEADLINE_S = 240
"""Of any wait, also for what is compiled first, on two cores that have ten times as much to do. A
test's own time (`pyproject.toml`) is little more."""
POLL_S = 0.005


async def until(
    condition: Callable[[], bool | Awaitable[bool]], deadline_s: float = DEADLINE_S
) -> None:
    """Raises: TimeoutError."""
    async with asyncio.timeout(deadline_s):
        while True:
            result = condition()
            if await result if inspect.isawaitable(result) else result:
                return
            await asyncio.sleep(POLL_S)
