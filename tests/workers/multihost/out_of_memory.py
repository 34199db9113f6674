"""Program of a worker whose devices run out of memory after SIGUSR1.

It runs `atelier worker` with an error in the place of a device's own. The other processes are in
that step's collectives by then.
"""

from __future__ import annotations

import signal
import sys
from threading import Event
from typing import Any

from jax.errors import JaxRuntimeError

import atelier
from tests.workers.paced import pace
from workers.multihost.follower import Follower
from workers.pool import process

starves = Event()


class Starving(Follower):
    def _step(self, message: Any) -> None:
        if starves.is_set():
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1234 bytes.")
        super()._step(message)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: starves.set())
    pace()
    vars(process)["Follower"] = Starving
    sys.exit(atelier.main())
