"""Compilation of a bucket's programs.

How long a request waits for it, and what it is charged.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

COMPILERS = 2
"""Threads: tracing holds Python's lock, the compiler does not, so two overlap well."""


class Compilation:
    """The programs that one request is the first to need. To be used from any thread.

    Args:
        optional: number of them that it can begin without (larger batches).
    """

    def __init__(self, optional: int = 0) -> None:
        self._lock = threading.Lock()
        self._left = optional
        self._busy_s = self._longest_s = 0.0
        self._under_way: dict[int, float] = {}
        """Start of the build in each thread."""
        self.programs: list[Future[Any]] = []
        """Programs of the compilation; only the event loop's thread reads this."""
        self._began_at: float | None = None
        self._on_begin: list[Callable[[], Any]] = []
        self._is_taken = False
        self.waited_s: float | None = None
        """Seconds from the first program's beginning until the request could begin; None: not yet,
        or nothing had to be compiled."""

    def take(self) -> bool:
        """Return whether the caller is the first to ask: the one who is charged."""
        with self._lock:
            is_first, self._is_taken = not self._is_taken, True
        return is_first

    @property
    def is_over(self) -> bool:
        """Return whether all of its programs are there, failed or dropped."""
        return all(program.done() for program in self.programs)

    async def over(self) -> None:
        """Wait until then."""
        programs = (asyncio.shield(asyncio.wrap_future(program)) for program in self.programs)
        await asyncio.gather(*programs, return_exceptions=True)

    def on_begin(self, callback: Callable[[], Any]) -> None:
        """Call back when something has to be compiled: at once, where that has begun.

        Never, where all programs are read from files.
        """
        with self._lock:
            has_begun = self._began_at is not None
            if not has_begun:
                self._on_begin.append(callback)
        if has_begun:
            callback()

    def can_begin(self) -> float | None:
        """Note that the programs are there which the request that was charged begins with.

        Returns the seconds that it took, to the first caller; None, if nothing had to be compiled.
        """
        with self._lock:
            if self._began_at is None or self.waited_s is not None:
                return None
            self.waited_s = time.monotonic() - self._began_at
            return self.waited_s

    @property
    def spent_s(self) -> float:
        """Seconds of all compile threads together, until now."""
        with self._lock:
            now = time.monotonic()
            under_way = sum(now - since for since in self._under_way.values())
            return (self._busy_s + under_way) / COMPILERS

    @property
    def charge_s(self) -> float:
        """Seconds of all compile threads together.

        A larger batch that is not compiled yet counts like the longest program that is.
        """
        with self._lock:
            return (self._busy_s + self._left * self._longest_s) / COMPILERS

    @contextmanager
    def making(self, is_optional: bool) -> Iterator[None]:
        """Make one of its programs in this thread: read it, or build it."""
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
    """Trace and compile one program inside: it was in no file."""
    compilation = _here.get()
    if compilation is None:
        yield
        return
    with compilation._building():
        yield
