"""Waiting in tests: for a condition, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_S = 60.0
"""Far more than anything here takes, even on a machine that is busy with other things."""


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns when the condition holds. Raises: TimeoutError: it never did."""
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110 - what is awaited is in another process
            await asyncio.sleep(0.01)
