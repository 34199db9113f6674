"""Cancellation of asyncio tasks that use Redis."""

from __future__ import annotations

import asyncio
from typing import Any

CANCEL_AGAIN_S = 0.05


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel asyncio tasks until they end, and retrieve their exceptions.

    One cancellation may be lost: before Python 3.12, `asyncio.wait_for`, through which redis-py
    writes, could swallow it.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
