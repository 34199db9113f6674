"""How a process ends at once, whatever its other threads wait for."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import NoReturn

log = logging.getLogger(__name__)


def leave(code: int, why: object) -> NoReturn:
    """A thread that waits for a device of a host that is gone may wait for ever: no tidy end."""
    log.error("this process leaves: %s", why)
    _exit(code)


def leave_within(seconds: float, code: int) -> None:
    """Leave then, unless the process has ended by itself: a thread may be in the midst of a step, a
    compilation or a clip that takes minutes, and Python would wait for it."""
    timer = threading.Timer(seconds, _exit, [code])
    timer.daemon = True
    timer.start()


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
