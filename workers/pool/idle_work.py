"""Work that nobody waits for: a pool does it while it has no jobs, and drops it for the first."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class IdleWork:
    """Works of one pool in order, each begun anew when it was dropped, until it has ended once.

    Args:
        works: may be canceled wherever they wait.
    """

    def __init__(self, *works: Callable[[], Awaitable[None]]) -> None:
        self._left = deque(works)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Do what is left, unless it is under way."""
        if self._left and self._task is None:
            self._task = asyncio.create_task(self._do())

    async def give_way(self) -> None:
        """Drop what is under way, and return when it has stopped."""
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait([task])

    async def _do(self) -> None:
        while self._left:
            try:
                await self._left[0]()
            except Exception:
                log.exception("work of an idle pool has failed, and is not tried again")
            self._left.popleft()
