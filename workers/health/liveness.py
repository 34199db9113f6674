"""Liveness and readiness state of a worker process, read by the threads of its HTTP server.

A process is alive while its event loop runs and its claims return, with or without Redis. Loading,
compiling, stepping and draining may take any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

BEAT_S = 1.0
LOOP_S = 60.0
"""An event loop that has been blocked for so long hangs: no callback takes even a second. A healthy
process rarely lacks processor time for that long, and a restart would not help it."""
CLAIM_S = 180.0
"""A claim waits a few seconds for a job, and some more for an unreachable Redis. A claim that has
not returned for so long never will. Nor will a worker that begins none for so long, although slots
are free and jobs wait."""

WAITING = "it waits for Redis"
LOADING = "it loads its model"
WARMING_UP = "it compiles and measures its warm-up requests"
DRAINING = "it drains: it accepts no more jobs"


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
        self._free_since: float | None = None
        """Time since which slots have been free without a claim; None: none is free."""
        self._unclaimed: str | None = None
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
        return (
            self._reason
            or self._own_failure_reason
            or self._unclaimed
            or self._of_parts("not_ready_reason")
        )

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

    @property
    def leaves_jobs_waiting(self) -> bool:
        """Return whether slots are free and jobs wait, but the worker has stopped claiming."""
        return self._unclaimed is not None

    def claims(self) -> None:
        """Record that a claim call begins, whose silence indicates a hang."""
        self.claims_begun += 1
        self._claims_since = self._free_since = self._clock()
        self._unclaimed = None

    def rests(self) -> None:
        """Record that no claim call is pending: the worker waits for capacity or runs jobs."""
        self._claims_since = None

    async def check_claims(
        self, free_slots: int, waiting_s: Callable[[], Awaitable[float | None]]
    ) -> None:
        """Check that the worker claims jobs. Call it regularly while the worker is ready.

        Each claim decides itself which waiting jobs suit the worker. A worker that begins claims is
        therefore ready, even if it gets no job.

        Args:
            free_slots: slots that no running job occupies.
            waiting_s: returns the seconds that the oldest job has waited; None: no job waits.
        """
        if free_slots <= 0 or self._free_since is None:
            self._free_since = self._clock() if free_slots > 0 else None
        idle_s = 0.0 if self._free_since is None else self._clock() - self._free_since
        oldest_s = await waiting_s() if idle_s > CLAIM_S else None
        has_waited = oldest_s is not None and oldest_s > CLAIM_S
        self._unclaimed = (
            f"it has {free_slots} free slots and has begun no claim for {idle_s:.0f} s, although"
            " jobs wait"
            if has_waited
            else None
        )

    async def beat(self) -> None:
        """Record regularly, until canceled, that the event loop runs."""
        while True:
            self._beat_at = self._clock()
            await asyncio.sleep(BEAT_S)
