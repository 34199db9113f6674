"""Liveness and readiness state of a worker process, read by the threads of its HTTP server.

A process is alive while its event loop runs and its claims return, with or without Redis. Loading,
compiling, stepping and draining may take any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

BEAT_S = 1.0
LOOP_S = 60.0
"""An event loop that has been blocked for so long hangs: no callback takes even a second. A healthy
process rarely lacks processor time for that long, and a restart would not help it."""
CLAIM_S = 180.0
"""A claim waits a few seconds for a job, and some more for an unreachable Redis. A claim that has
not returned for so long never will."""

WAITING = "it waits for Redis"
LOADING = "it loads its model"
WARMING_UP = "it compiles and measures its warm-up requests"
DRAINING = "it drains: it takes no more jobs"


class Liveness:
    """Liveness and readiness of one process. One thread writes, any thread reads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reason: str | None = LOADING
        self._beat_at: float | None = None
        self._claims_since: float | None = None
        self.claims_begun = 0
        self._parts: dict[str, Liveness] = {}
        """Liveness of each model, if the process serves several."""

    def part(self, model: str) -> Liveness:
        """Return the liveness of one of several models; the process combines all of them."""
        return self._parts.setdefault(model, Liveness(self._clock))

    @property
    def failure_reason(self) -> str | None:
        """Reason to replace the process, or None."""
        return self._own_failure_reason or self._of_parts("failure_reason")

    @property
    def _own_failure_reason(self) -> str | None:
        now, beat_at, since = self._clock(), self._beat_at, self._claims_since
        if self._reason == DRAINING:
            return None  # draining has a time limit of its own
        if beat_at is not None and now - beat_at > LOOP_S:
            return f"its event loop has been blocked for {now - beat_at:.0f} s"
        if since is not None and now - since > CLAIM_S:
            return f"a claim has not returned for {now - since:.0f} s"
        return None

    @property
    def not_ready_reason(self) -> str | None:
        """Reason why the process takes no jobs, or None."""
        return self._reason or self._own_failure_reason or self._of_parts("not_ready_reason")

    def _of_parts(self, what: Literal["failure_reason", "not_ready_reason"]) -> str | None:
        reasons = ((model, getattr(part, what)) for model, part in self._parts.items())
        return next((f"{model}: {reason}" for model, reason in reasons if reason), None)

    def waits(self, reason: str) -> None:
        """Set the process's state to waiting for Redis, before or after loading."""
        self._reason = f"{WAITING}: {reason}"

    def loads(self) -> None:
        """Set the process's state to loading the model."""
        self._reason = LOADING

    def warms_up(self) -> None:
        """Set the process's state to warming up."""
        self._reason = WARMING_UP

    def refuses(self, reason: str) -> None:
        """Set the process's state to never accepting jobs."""
        self._reason = reason

    def serves(self) -> None:
        """Set the process's state to accepting jobs."""
        self._reason = None

    def drains(self) -> None:
        """Set the process's state to draining: it accepts no more jobs."""
        self._reason = DRAINING

    def claims(self) -> None:
        """Record that a claim call begins, whose silence indicates a hang."""
        self.claims_begun += 1
        self._claims_since = self._clock()

    def rests(self) -> None:
        """Record that no claim call is pending: the worker waits for capacity or runs jobs."""
        self._claims_since = None

    async def beat(self) -> None:
        """Record regularly, until canceled, that the event loop runs."""
        while True:
            self._beat_at = self._clock()
            await asyncio.sleep(BEAT_S)
