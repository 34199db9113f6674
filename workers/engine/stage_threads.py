"""Threads of an engine's stages, and its death, which ends all waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from workers.engine.errors import EngineDied

T = TypeVar("T")

STAGES = ("prepare", "encode", "decode", "upscale", "preview", "keep")


class StageThreads:
    """One thread a stage: at most one encode and one decode share the device with the steps.

    To be used from one event loop, in which it is made.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.died: asyncio.Future[EngineDied] = self.loop.create_future()
        """Death of the engine; has a result only when nothing can be launched any more."""
        self._threads = {stage: ThreadPoolExecutor(1, stage) for stage in STAGES}

    async def run(self, stage: str, function: Callable[..., T], *args: Any) -> T:
        """Run a function in the stage's thread. Raises: EngineDied, or what it raises."""
        here = copy_context()  # so that what is said there is told as this job's
        work = self.loop.run_in_executor(self._threads[stage], here.run, function, *args)
        return await self.unless_dead(work)

    def begin(self, stage: str, function: Callable[..., Any], *args: Any) -> None:
        """Run a function there that nobody waits for."""
        self._threads[stage].submit(function, *args)

    async def settled(self) -> None:
        """Wait until all that was begun has ended. Raises: EngineDied."""
        for stage in STAGES:
            await self.run(stage, lambda: None)

    async def unless_dead(self, work: asyncio.Future[T]) -> T:
        """Await work that a dead engine may never end. Raises: EngineDied."""
        either: list[asyncio.Future[Any]] = [work, self.died]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise self.died.result()
            return work.result()
        finally:
            work.cancel()

    def die(self, error: Exception) -> None:
        """Have nothing launched any more, for this reason. From any thread."""
        if not isinstance(error, EngineDied):
            error = EngineDied(f"the step loop ended by {type(error).__name__}: {error}")
        self.loop.call_soon_threadsafe(self._bury, error)

    def close(self) -> None:
        """Begin nothing more; what is being done goes on to its end."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)

    def _bury(self, died: EngineDied) -> None:
        if not self.died.done():
            self.died.set_result(died)
