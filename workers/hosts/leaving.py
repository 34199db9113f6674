"""How a process of a slice ends: at once, whatever its other threads wait for."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

log = logging.getLogger(__name__)


def leave(code: int, why: object) -> NoReturn:
    """A thread that waits for a device of a host that is gone may wait for ever: no tidy end."""
    log.error("this process leaves: %s", why)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
