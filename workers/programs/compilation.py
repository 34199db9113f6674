"""Time accounting of a bucket's compilation: a request's waiting time and its charge."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MIN_THREADS, MAX_THREADS = 2, 4
"""Bounds on the number of compile threads. Tracing holds the GIL and compiling does not, so two
overlap well on any machine. Compiling a program for a TPU takes up to 3 GiB of host memory."""
CORES_PER_THREAD = 4


def compile_threads(cores: int) -> int:
    """Return the number of compile threads of a worker that may use this number of cores."""
    return min(MAX_THREADS, max(MIN_THREADS, cores // CORES_PER_THREAD))


THREADS = compile_threads(len(os.sched_getaffinity(0)))
"""Number of compile threads of this process."""


class Compilation:
    """The set of programs that one request is the first to need. Methods may run in any thread.

    Args:
        optional: number of programs that the request can begin without (larger batches).
    """

    def __init__(self, optional: int = 0) -> None:
        self._lock = threading.Lock()
        self._left = optional
        self._busy_s = self._longest_s = 0.0
        self._under_way: dict[int, float] = {}
        """Start time of the running build in each thread."""
        self.programs: list[Future[Any]] = []
        """Programs of the compilation; read only by the event loop's thread."""
        self._began_at: float | None = None
        self._on_begin: list[Callable[[], Any]] = []
        self._is_taken = False
        self.waited_s: float | None = None
        """Seconds from the start of the first build until the request could begin; None: not yet,
        or nothing had to be compiled."""

    def take(self) -> bool:
        """Return whether this is the first call; the first caller is charged to compile."""
        with self._lock:
            is_first, self._is_taken = not self._is_taken, True
        return is_first

    @property
    def is_over(self) -> bool:
        """Return whether all programs of the compilation are compiled, failed or dropped."""
        return all(program.done() for program in self.programs)

    async def over(self) -> None:
        """Wait until all programs of the compilation are compiled, failed or dropped."""
        programs = (asyncio.shield(asyncio.wrap_future(program)) for program in self.programs)
        await asyncio.gather(*programs, return_exceptions=True)

    def on_begin(self, callback: Callable[[], Any]) -> None:
        """Call `callback` when a program's build starts, or at once if one has started.

        Never called if all programs are loaded from files.
        """
        with self._lock:
            has_begun = self._began_at is not None
            if not has_begun:
                self._on_begin.append(callback)
        if has_begun:
            callback()

    def can_begin(self) -> float | None:
        """Record that the programs needed to begin the charged request are ready.

        Returns the elapsed seconds to the first caller; None if nothing had to be compiled.
        """
        with self._lock:
            if self._began_at is None or self.waited_s is not None:
                return None
            self.waited_s = time.monotonic() - self._began_at
            return self.waited_s

    @property
    def spent_s(self) -> float:
        """Compile time until now, running builds included, divided by the compile threads."""
        with self._lock:
            now = time.monotonic()
            under_way = sum(now - since for since in self._under_way.values())
            return (self._busy_s + under_way) / THREADS

    @property
    def charge_s(self) -> float:
        """Compile time to charge, divided by the compile threads.

        Each larger batch still pending counts like the longest finished program.
        """
        with self._lock:
            return (self._busy_s + self._left * self._longest_s) / THREADS

    @contextmanager
    def making(self, is_optional: bool) -> Iterator[None]:
        """Attribute this thread's work to the compilation: loading or building one program."""
        before = _here.set(self)
        try:
            yield
        finally:
            _here.reset(before)
            if is_optional:
                with self._lock:
                    self._left -= 1

    @contextmanager
    def _building(self) -> Iterator[None]:
        started, thread = time.monotonic(), threading.get_ident()
        with self._lock:
            self._under_way[thread] = started
            self._began_at = self._began_at or started
            callbacks, self._on_begin = self._on_begin, []
        for callback in callbacks:
            callback()
        try:
            yield
        finally:
            took_s = time.monotonic() - started
            with self._lock:
                del self._under_way[thread]
                self._busy_s += took_s
                self._longest_s = max(self._longest_s, took_s)


_here: ContextVar[Compilation | None] = ContextVar("compilation", default=None)


@contextmanager
def building() -> Iterator[None]:
    """Time the tracing and compiling of one program that is in no file."""
    compilation = _here.get()
    if compilation is None:
        yield
        return
    with compilation._building():
        yield
