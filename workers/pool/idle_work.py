"""Background work that a worker does only while it has no jobs."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class IdleWork:
    """Queue of background work of an idle worker, run in order.

    An interrupted work starts over next time; each runs to its end once.

    Args:
        works: coroutine functions that tolerate cancellation at any await.
    """

    def __init__(self, *works: Callable[[], Awaitable[None]]) -> None:
        self._left = deque(works)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the remaining background work, unless some is running."""
        if self._left and self._task is None:
            self._task = asyncio.create_task(self._do())

    async def interrupt(self) -> None:
        """Cancel the running background work, and return once it has stopped."""
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait([task])

    async def _do(self) -> None:
        while self._left:
            try:
                await self._left[0]()
            except Exception:
                log.exception("background work failed, and is not retried")
            self._left.popleft()
