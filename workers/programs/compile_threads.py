"""Threads that compile: what a request waits for goes before what only saves time later."""

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
    """Function that a thread will call."""

    can_wait: bool
    number: int
    make: Callable[[], Any] = field(compare=False)
    future: Future[Any] = field(compare=False, default_factory=Future)


class CompileThreads:
    """Threads that take what cannot wait first, and of each kind the oldest.

    One of several is kept free of what can wait, which may take minutes.

    Args:
        count: of threads.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, "compile")
        self._most_of_others = max(1, count - 1)
        self._others = 0
        """Tasks under way that could have waited."""
        self._lock = threading.Lock()
        self._tasks: list[Task] = []
        self._numbers = itertools.count()

    def submit(self, make: Callable[[], T], can_wait: bool = False) -> Future[T]:
        """Return what `make` will return."""
        with self._lock:
            task = Task(can_wait, next(self._numbers), make)
            heapq.heappush(self._tasks, task)
        self._threads.submit(self._next)
        return task.future

    def close(self) -> None:
        """Drop what no thread has begun; what runs goes on to its end."""
        with self._lock:
            tasks, self._tasks = self._tasks, []
        self._threads.shutdown(wait=False, cancel_futures=True)
        for task in tasks:
            task.future.cancel()

    def _next(self) -> None:
        """Run the next task, where one may be begun now."""
        with self._lock:
            if not self._tasks or (self._tasks[0].can_wait and self._is_full_of_others):
                return
            task = heapq.heappop(self._tasks)
            self._others += task.can_wait
        try:
            if task.future.set_running_or_notify_cancel():
                _settle(task)
        finally:
            self._end(task)

    @property
    def _is_full_of_others(self) -> bool:
        return self._others >= self._most_of_others

    def _end(self, task: Task) -> None:
        """Let the next one begin that had to wait for this."""
        if task.can_wait:
            with self._lock:
                self._others -= 1
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
