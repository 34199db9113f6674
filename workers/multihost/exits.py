"""Immediate exit of a process, whatever its other threads wait for."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

log = logging.getLogger(__name__)


def leave(code: int, why: object) -> NoReturn:
    """A thread that waits for a device of a host that is gone may wait for ever: no tidy end."""
    log.error("this process leaves: %s", why)
    _exit(code)


def leave_within(seconds: float, code: int) -> None:
    """Leave after that time, unless the process has ended by itself.

    A thread may be in the midst of a step, a compilation or a video that takes minutes, and Python
    would wait for it.
    """
    timer = threading.Timer(seconds, _exit, [code])
    timer.daemon = True
    timer.start()


@contextmanager
def leaving_after(seconds: float, why: str) -> Iterator[None]:
    """Leave then, unless what is done in here has ended."""
    timer = threading.Timer(seconds, leave, [1, why])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def leave_on_sigterm() -> None:
    """Leave at once, until an event loop or `watch_exits` has a handler of its own.

    The first process of a container would not even be ended by a signal that it has no handler for;
    and since a handler waits for whatever library holds the main thread, a thread does it.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(theirs.fileno())
    threading.Thread(target=_leave_on_signal, args=(ours, theirs), daemon=True).start()


def watch_exits(handler: Callable[[int, FrameType | None], None]) -> None:
    """Give SIGTERM and SIGINT to this handler from now on; nobody leaves at once any more."""
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, handler)
    signal.set_wakeup_fd(-1)


def _leave_on_signal(ours: socket.socket, theirs: socket.socket) -> None:
    """Python writes each signal's number there as it comes. Keeps the other end open."""
    number = 0
    while number != signal.SIGTERM:
        (number,) = ours.recv(1)
    _exit(128 + number)


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
