"""Exceptions that the queue raises: rejected jobs, unknown cursors, unreadable jobs."""

from __future__ import annotations

import math

from service.jobs.model.quota_usage import QuotaUsage


class QueueFull(Exception):
    """Rejection of a job because the model's queue is full."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the queue of model {model!r} accepts no more jobs")
        self.model = model


class QuotaExceeded(Exception):
    """Rejection because the tenant has used up a quota.

    Args:
        quota: name of the quota: `queued`, `device-seconds` or `stored-bytes`.
        standing: the tenant's usage at that time.
        oldest: id of its oldest queued job.
    """

    def __init__(self, quota: str, standing: QuotaUsage, oldest: str | None = None) -> None:
        super().__init__(f"the tenant's quota {quota!r} is used up")
        self.quota = quota
        self.usage = standing
        self.oldest = oldest


class DeadlineTooSoon(Exception):
    """Rejection because the queue is too long for the job's deadline.

    `wait_s` is the time after which a similar job could be accepted.

    Args:
        needs_s: estimated time until the job would be done.
    """

    def __init__(self, needs_s: float, deadline_s: float, wait_s: float) -> None:
        super().__init__(
            f"it would finish in about {needs_s:.1f} s, and its deadline is in {deadline_s:g} s;"
            f" give it more time, or try again in {max(1, math.ceil(wait_s))} s"
        )
        self.wait_s = wait_s


class DeadlineTooShort(Exception):
    """Rejection because the job takes longer than its deadline, even on an idle worker.

    Args:
        run_s: its duration alone, without compiling.
        compile_s: compile time before that; 0: everything is compiled.
    """

    def __init__(self, run_s: float, compile_s: float, deadline_s: float) -> None:
        compiling = f", {compile_s:.1f} s of it for compiling" if compile_s else ""
        min_s = math.ceil(run_s + compile_s)
        super().__init__(
            f"must be {min_s} or more: alone on the fastest available worker it takes about"
            f" {run_s + compile_s:.1f} s{compiling}, and the deadline is {deadline_s:g} s"
        )


class IdempotencyConflict(Exception):
    """Rejection because the idempotency key was already used with another body."""

    def __init__(self) -> None:
        super().__init__(
            "this idempotency key was used with another body; "
            "send the first body again or take a new key"
        )


class UnknownCursor(LookupError):
    """Error for a listing that continues after a job that does not exist (any more)."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"there is no job {job_id!r} after which to continue the list; start again at the"
            " first page"
        )
        self.job_id = job_id


class WireError(Exception):
    """Error for a job of a newer wire version than this process reads."""

    def __init__(self, job_id: str, version: int, newest: int) -> None:
        super().__init__(
            f"job {job_id!r} was written in wire version {version} and this process supports"
            f" versions up to {newest}: upgrade it"
        )


class LoraBusy(Exception):
    """Error for an adapter file that another call is storing or deleting."""

    def __init__(self) -> None:
        super().__init__("the same file is currently being stored or deleted")
