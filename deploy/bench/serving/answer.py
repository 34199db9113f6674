"""Outcome of one request of a load: the times that client and server saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deploy.bench.serving.ask import TimedRequest

SUCCEEDED, REFUSED = "succeeded", "refused"
UNREACHABLE, LOST, UNFINISHED = "unreachable", "lost", "unfinished"
"""Outcomes, beside the other end states of a job. Lost: accepted, and then not there any more."""


@dataclass
class Answer:
    """Filled in as it comes. A time is None where it never came to that."""

    ask: TimedRequest
    late_s: float = 0.0
    """Delay after its planned instant."""
    outcome: str = UNFINISHED
    reason: str | None = None
    """Code of why it was refused, did not reach the server, or failed."""
    detail: str | None = None
    """Server's words about a refusal or a failure."""
    status: int | None = None
    """Status of a refusal, as HTTP has it."""
    retry_after_s: float | None = None
    job_id: str | None = None
    deadline_s: float | None = None
    """Deadline that it was sent with."""
    accept_s: float | None = None
    """Time from its sending to the 202."""
    whole_s: float | None = None
    """Time from its planned instant to its files; without `fetch`, to the news of its end."""
    fetch_s: float | None = None
    """Part of that for the files."""
    queue_s: float | None = None
    """Time from its acceptance to its (last) claim, by the server's clock, as is the next one."""
    run_s: float | None = None
    """Time from that claim to its end."""
    device_s: float | None = None
    """Share of the device's time: what the engine took for it."""
    pictures: int = 0
    ended_at_s: float | None = None
    """Time of its end after the load's beginning."""

    @property
    def outside_s(self) -> float | None:
        """Seconds of the whole outside the queue's own stamps.

        That is HTTP, admission, the news of its end and its files.
        """
        if self.whole_s is None or self.queue_s is None or self.run_s is None:
            return None
        return self.whole_s - self.late_s - self.queue_s - self.run_s

    @property
    def added_s(self) -> float | None:
        """Time of the whole but the queue and the device: what the service adds to the engine.

        Only of a request that has the device for itself: in company, neighbours' shares are in it.
        """
        if self.whole_s is None or self.queue_s is None or self.device_s is None:
            return None
        return self.whole_s - self.late_s - self.queue_s - self.device_s

    def met(self, deadline_s: float) -> bool:
        """Return whether it came, whole, in that time."""
        if self.outcome != SUCCEEDED or self.whole_s is None:
            return False
        return self.whole_s <= deadline_s

    def tell(self, job: Mapping[str, Any]) -> None:
        """Record what the job says of its end. Servers that say less leave less."""
        error = job.get("error") or {}
        self.outcome, self.reason, self.detail = (
            job["state"],
            error.get("code"),
            error.get("message"),
        )
        created, started, finished = (
            _seconds(job.get(f"{name}_at")) for name in ("created", "started", "finished")
        )
        if created is not None and started is not None:
            self.queue_s = started - created
        if started is not None and finished is not None:
            self.run_s = finished - started
        self.device_s = (job.get("usage") or {}).get("device_seconds")
        self.pictures = len(job.get("outputs") or ())


def lifetime_s(job: Mapping[str, Any]) -> float | None:
    """Seconds from a job's acceptance to its end, by the server's clock."""
    created, finished = _seconds(job.get("created_at")), _seconds(job.get("finished_at"))
    return None if created is None or finished is None else finished - created


def _seconds(stamp: str | None) -> float | None:
    return None if stamp is None else datetime.fromisoformat(stamp).timestamp()
