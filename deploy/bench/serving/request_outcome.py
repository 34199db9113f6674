"""Outcome of one request of a load, with times of client and server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deploy.bench.serving.timed_request import TimedRequest

SUCCEEDED, REFUSED = "succeeded", "refused"
UNREACHABLE, LOST, UNFINISHED = "unreachable", "lost", "unfinished"
"""Outcomes in addition to a job's final states. Lost: the accepted job no longer exists."""


@dataclass
class RequestOutcome:
    """Outcome of a request, filled in as it progresses. A time is None if it was not reached."""

    timed_request: TimedRequest
    late_s: float = 0.0
    """Delay after its planned time."""
    outcome: str = UNFINISHED
    reason: str | None = None
    """Code of its refusal, connection error or failure."""
    detail: str | None = None
    """Server's message about a refusal or a failure."""
    status: int | None = None
    """HTTP status of a refusal."""
    retry_after_s: float | None = None
    job_id: str | None = None
    deadline_s: float | None = None
    """Deadline sent with the request."""
    accept_s: float | None = None
    """Seconds from sending to the 202."""
    whole_s: float | None = None
    """Seconds from its planned time until its files are fetched; without `fetch`, until its end
    event."""
    fetch_s: float | None = None
    """Seconds of fetching the files, a part of `whole_s`."""
    queue_s: float | None = None
    """Seconds from acceptance to the (last) claim, by the server's clock."""
    run_s: float | None = None
    """Seconds from that claim to the end, by the server's clock."""
    device_s: float | None = None
    """Device-seconds that the engine accounts to the job."""
    steps: int = 0
    """Steps that the job's images ran."""
    reuses: str | None = None
    """Id of the job whose files it received."""
    is_hit: bool = False
    """Whether it received them at once (`X-Atelier-Cache: hit`)."""
    images: int = 0
    ended_at_s: float | None = None
    """Time of its end after the load's start."""

    @property
    def outside_s(self) -> float | None:
        """Seconds of the total that the job's own timestamps do not cover.

        That is HTTP, admission, the delay of the end event, and the files.
        """
        if self.whole_s is None or self.queue_s is None or self.run_s is None:
            return None
        return self.whole_s - self.late_s - self.queue_s - self.run_s

    @property
    def added_s(self) -> float | None:
        """Seconds of the total except queue and device: the service's overhead.

        Valid only for a request that has the device alone; a batch includes the time of others.
        """
        if self.whole_s is None or self.queue_s is None or self.device_s is None:
            return None
        return self.whole_s - self.late_s - self.queue_s - self.device_s

    def met(self, deadline_s: float) -> bool:
        """Return whether the request succeeded within `deadline_s` seconds."""
        if self.outcome != SUCCEEDED or self.whole_s is None:
            return False
        return self.whole_s <= deadline_s

    def record_job(self, job: Mapping[str, Any]) -> None:
        """Record the final state of the job. Missing fields are left None."""
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
        usage = job.get("usage") or {}
        self.device_s, self.steps = usage.get("device_seconds"), usage.get("steps", 0)
        self.reuses = job.get("reuses")
        self.images = len(job.get("outputs") or ())


def lifetime_s(job: Mapping[str, Any]) -> float | None:
    """Return the seconds from a job's acceptance to its end, by the server's clock."""
    created, finished = _seconds(job.get("created_at")), _seconds(job.get("finished_at"))
    return None if created is None or finished is None else finished - created


def _seconds(stamp: str | None) -> float | None:
    return None if stamp is None else datetime.fromisoformat(stamp).timestamp()
