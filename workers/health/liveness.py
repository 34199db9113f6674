"""Liveness: how a pool's process is, for those who ask from other threads.

Alive is a process whose claim loop turns: it may load, compile, step or drain for as long as that
takes, but its event loop has to run, and a claim has to come back, with or without Redis.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

BEAT_S = 1.0
LOOP_S = 60.0
"""An event loop that has not turned for so long hangs: nothing in it takes a second, and a process
without a processor for that long is not helped by being killed, but rare."""
CLAIM_S = 180.0
"""A claim waits for a job for a few seconds, and for a Redis that is away for some more, each time
anew: one that has not come back for so long never will."""

WAITING = "it waits for Redis"
LOADING = "it loads its model"
WARMING_UP = "it compiles and measures its warm-up requests"
DRAINING = "it drains: it takes no more jobs"


class Liveness:
    """Written by one thread, read by any.

    Args:
        clock: seconds, from any moment on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reason: str | None = LOADING
        self._beat_at: float | None = None
        self._claims_since: float | None = None
        self.claims_begun = 0
        self._parts: dict[str, Liveness] = {}
        """Liveness of each model, where the process serves several."""

    def part(self, model: str) -> Liveness:
        """Return the liveness of one of several models; the process is as all of them are."""
        return self._parts.setdefault(model, Liveness(self._clock))

    @property
    def illness(self) -> str | None:
        """Reason to replace the process; None: there is none."""
        return self._own_illness or self._of_parts("illness")

    @property
    def _own_illness(self) -> str | None:
        now, beat_at, since = self._clock(), self._beat_at, self._claims_since
        if self._reason == DRAINING:
            return None  # that has an end of its own
        if beat_at is not None and now - beat_at > LOOP_S:
            return f"its event loop has not turned for {now - beat_at:.0f} s"
        if since is not None and now - since > CLAIM_S:
            return f"a claim has not come back for {now - since:.0f} s"
        return None

    @property
    def unready(self) -> str | None:
        """Reason for taking no jobs; None: it takes them."""
        return self._reason or self._own_illness or self._of_parts("unready")

    def _of_parts(self, what: Literal["illness", "unready"]) -> str | None:
        said = ((model, getattr(part, what)) for model, part in self._parts.items())
        return next((f"{model}: {reason}" for model, reason in said if reason), None)

    def waits(self, reason: str) -> None:
        """Report that it waits for Redis, before it loads or after."""
        self._reason = f"{WAITING}: {reason}"

    def loads(self) -> None:
        """Note that the model is being loaded."""
        self._reason = LOADING

    def warms_up(self) -> None:
        """Note that the warm-up has begun."""
        self._reason = WARMING_UP

    def refuses(self, reason: str) -> None:
        """Report that it will take no jobs for as long as it lives."""
        self._reason = reason

    def serves(self) -> None:
        """Note that the worker takes jobs."""
        self._reason = None

    def drains(self) -> None:
        """Note that the worker takes no more jobs."""
        self._reason = DRAINING

    def claims(self) -> None:
        """A claim begins."""
        self.claims_begun += 1
        self._claims_since = self._clock()

    def rests(self) -> None:
        """Report that it waits for capacity, however long that takes, or works on claims."""
        self._claims_since = None

    async def beat(self) -> None:
        """Record, until canceled, that the event loop turns."""
        while True:
            self._beat_at = self._clock()
            await asyncio.sleep(BEAT_S)
