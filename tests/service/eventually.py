"""Poll a condition in tests, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_S = 60.0
"""Far longer than any awaited condition takes, even on a busy machine."""


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition holds. Raises: TimeoutError: it did not hold in time."""
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110 - the awaited state is in another process
            await asyncio.sleep(0.01)
