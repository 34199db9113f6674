"""Immediate exit of a process, even if other threads are blocked, with its reason in one line."""

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

from models.checkpoint.folder import CheckpointError
from service.settings.section import ConfigError
from workers.engine.errors import is_out_of_memory
from workers.multihost.connection import ConnectionLost

log = logging.getLogger(__name__)


def exit_now(code: int, why: object) -> NoReturn:
    """Exit this process immediately without cleanup: threads may wait for a lost host's device."""
    log.error("this process exits: %s", why)
    _exit(code)


def exit_within(seconds: float, code: int) -> None:
    """Exit this process after that time, unless it has ended by then.

    A thread may be in a step, a compilation or a video that takes minutes, and Python would wait
    for it.
    """
    timer = threading.Timer(seconds, _exit, [code])
    timer.daemon = True
    timer.start()


@contextmanager
def exit_after(seconds: float, why: str) -> Iterator[None]:
    """Exit this process after that time, unless the context has closed by then."""
    timer = threading.Timer(seconds, exit_now, [1, why])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def exit_on_sigterm() -> None:
    """Exit immediately on SIGTERM, until an event loop or `watch_exits` installs a handler.

    The first process of a container ignores signals without a handler. A Python handler waits until
    a library releases the main thread, so a separate thread reacts.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(theirs.fileno())
    threading.Thread(target=_exit_on_signal, args=(ours, theirs), daemon=True).start()


def watch_exits(handler: Callable[[int, FrameType | None], None]) -> None:
    """Install a handler of SIGTERM and SIGINT, replacing the immediate exit."""
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, handler)
    signal.set_wakeup_fd(-1)


def _exit_on_signal(ours: socket.socket, theirs: socket.socket) -> None:
    """Exit on SIGTERM, whose number Python writes to the socket. Keeps `theirs` open."""
    number = 0
    while number != signal.SIGTERM:
        (number,) = ours.recv(1)
    _exit(128 + number)


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


CAUSE_S = 1.0
"""Time to wait for the final message of an exited process, which its connection usually delivers at
once."""


def is_local(error: Exception) -> bool:
    """Return whether an error originates in this process.

    A collective's error may mean that any other process is lost, without naming it.
    """
    return isinstance(error, (CheckpointError, ConfigError)) or is_out_of_memory(error)


def reason(error: Exception) -> str:
    """Format an error as a line that states how to fix it."""
    if isinstance(error, (CheckpointError, ConfigError, ConnectionLost)):
        return str(error)
    text = next(iter(str(error).splitlines()), "")
    if is_out_of_memory(error):
        return (
            f"it ran out of memory ({text}): give the pool fewer slots or more devices, or its "
            "model smaller sizes"
        )
    return f"{type(error).__name__}: {text}; its own log has the whole error"
