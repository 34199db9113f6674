"""Compile thread pool with two priorities: programs that requests await, then optional ones."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(order=True)
class Task:
    """Compile task in the queue, with its priority and future."""

    can_wait: bool
    number: int
    make: Callable[[], Any] = field(compare=False)
    future: Future[Any] = field(compare=False, default_factory=Future)


class CompileThreads:
    """Thread pool that runs required tasks first, then optional ones, each in order of submission.

    With several threads, one is reserved for required tasks, since optional ones may take minutes.

    Args:
        count: number of threads.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, "compile")
        self._max_optional = max(1, count - 1)
        self._optional_running = 0
        """Number of running tasks that are optional."""
        self._lock = threading.Lock()
        self._tasks: list[Task] = []
        self._numbers = itertools.count()

    def submit(self, make: Callable[[], T], can_wait: bool = False) -> Future[T]:
        """Queue `make`; return the future of its result."""
        with self._lock:
            task = Task(can_wait, next(self._numbers), make)
            heapq.heappush(self._tasks, task)
        self._threads.submit(self._next)
        return task.future

    def close(self) -> None:
        """Cancel queued tasks; running ones continue to their end."""
        with self._lock:
            tasks, self._tasks = self._tasks, []
        self._threads.shutdown(wait=False, cancel_futures=True)
        for task in tasks:
            task.future.cancel()

    def _next(self) -> None:
        """Run the next compile task, if one may start now."""
        with self._lock:
            if not self._tasks or (self._tasks[0].can_wait and self._is_full_of_optional):
                return
            task = heapq.heappop(self._tasks)
            self._optional_running += task.can_wait
        try:
            if task.future.set_running_or_notify_cancel():
                _settle(task)
        finally:
            self._end(task)

    @property
    def _is_full_of_optional(self) -> bool:
        return self._optional_running >= self._max_optional

    def _end(self, task: Task) -> None:
        """Release the thread's optional slot, and start a compile task that waited for it."""
        if task.can_wait:
            with self._lock:
                self._optional_running -= 1
                is_open = bool(self._tasks)
            if is_open:
                self._threads.submit(self._next)


def _settle(task: Task) -> None:
    try:
        result = task.make()
    except BaseException as error:
        task.future.set_exception(error)
    else:
        task.future.set_result(result)
