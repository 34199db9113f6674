"""Limits during an attack on a front end in the test's process: callbacks, memory, others' jobs."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI

from tests.service.attacked import CALLBACK_S
from tests.service.concurrent_client import ADDRESS, finishing_job
from tests.service.standin import MODEL

GROWS = 96 * 2**20
"""Bytes by which the process, which contains the attacker, may grow at any moment."""
STATUS, PEAK = Path("/proc/self/status"), "VmHWM:"
RESET = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Source: proc_pid_clear_refs(5)."""


def neighbour_of(app: FastAPI) -> httpx.AsyncClient:
    """Client of another address that calls the app in this process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(ADDRESS, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


class Callbacks:
    """Context manager that measures the processor time of this thread's callbacks."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._run: Callable[[asyncio.Handle], None] = asyncio.Handle._run

    def __enter__(self) -> Callbacks:
        def run(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            try:
                self._run(handle)
            finally:
                self.longest_s = max(self.longest_s, time.thread_time() - began)

        gc.freeze()  # objects of earlier tests are none of a front end's
        asyncio.Handle._run = run
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run


class PeakMemory:
    """Context manager that measures the highest resident memory of this process."""

    def __enter__(self) -> PeakMemory:
        RESET.write_text(RESET_PEAK)
        self._before = peak_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        self.grown = peak_bytes() - self._before


def peak_bytes() -> int:
    """Return the highest resident memory since it was reset."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(PEAK))
    return 1024 * int(line.split()[1])


@asynccontextmanager
async def harmless(neighbour: httpx.AsyncClient, model: str = MODEL) -> AsyncIterator[None]:
    """Assert the limits of the event loop, memory, and another client while the block runs.

    Args:
        neighbour: client of the same front end, of another tenant or address.
        model: a model that a worker serves.
    """
    with PeakMemory() as memory, Callbacks() as callbacks:
        async with finishing_job(neighbour, model):
            yield
    assert memory.grown < GROWS, f"grew by {memory.grown} bytes"
    assert callbacks.longest_s < CALLBACK_S, f"the loop was held up by {callbacks.longest_s} s"
