"""Thread that tenants use in turn, so that one tenant's slow work delays others by one function."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

Work = tuple[Future[Any], Callable[[], Any]]
"""Function that waits for the thread, and the future of its result."""


class FairThread:
    """One thread for functions of several tenants, in round-robin order.

    Functions of one tenant run in the order of their arrival. Callable from any thread.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._lock = Lock()
        self._lines: OrderedDict[str, deque[Work]] = OrderedDict()
        """Waiting functions by tenant. The first tenant is next."""

    def submit(self, tenant: str, function: Callable[..., T], *args: Any) -> Future[T]:
        """Run a function in the tenant's next turn. Canceling the future dequeues the function."""
        result: Future[T] = Future()
        with self._lock:
            self._lines.setdefault(tenant, deque()).append((result, partial(function, *args)))
        self._thread.submit(self._run_next)
        return result

    def settled(self) -> Future[None]:
        """Return a future that completes once all functions submitted until now have ended.

        Nothing may be submitted before it completes: another tenant's turn might come first.
        """
        return self._thread.submit(lambda: None)

    def close(self) -> None:
        """Cancel all waiting functions, and accept no more; a running one continues to its end."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for result, _ in (work for line in self._lines.values() for work in line):
                result.cancel()

    def _run_next(self) -> None:
        """Run the function whose turn it is. Each submission calls this once."""
        with self._lock:
            tenant, line = self._lines.popitem(last=False)
            result, call = line.popleft()
            if line:
                self._lines[tenant] = line  # moves to the end of the round
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)
            del result, call  # its traceback contains this frame
