"""Errors between front end, queue, pools and store."""

from __future__ import annotations

import math

from service.jobs.model.quota_usage import QuotaUsage


class QueueFull(Exception):
    """The model takes no more jobs for now."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the queue of model {model!r} takes no more jobs")
        self.model = model


class QuotaExceeded(Exception):
    """The tenant has as much as its settings allow.

    Args:
        quota: which one, `queued`, `device-seconds` or `stored-bytes`.
        standing: what the tenant had then.
        oldest: id of its oldest job that waits.
    """

    def __init__(self, quota: str, standing: QuotaUsage, oldest: str | None = None) -> None:
        super().__init__(f"the tenant's quota {quota!r} is used up")
        self.quota = quota
        self.standing = standing
        self.oldest = oldest


class DeadlineTooSoon(Exception):
    """The job could not be done in time; `wait_s` says when one like it could be accepted.

    Args:
        needs_s: until it would be done, by what is known now.
    """

    def __init__(self, needs_s: float, deadline_s: float, wait_s: float) -> None:
        super().__init__(
            f"it would be done in about {needs_s:.1f} s and its deadline is {deadline_s:g} s away; "
            f"give it more time, or try again in {max(1, math.ceil(wait_s))} s"
        )
        self.wait_s = wait_s


class DeadlineTooShort(Exception):
    """The job takes longer than its deadline allows, even where nothing else runs.

    Args:
        run_s: what it takes alone, compiled.
        compile_s: what compiling takes before that; 0: nothing.
    """

    def __init__(self, run_s: float, compile_s: float, deadline_s: float) -> None:
        compiling = f", {compile_s:.1f} s of it for compiling" if compile_s else ""
        least_s = math.ceil(run_s + compile_s)
        super().__init__(
            f"must be {least_s} or more: alone on the fastest pool that is there it takes about"
            f" {run_s + compile_s:.1f} s{compiling}, and {deadline_s:g} s are given"
        )


class IdempotencyConflict(Exception):
    """The key was used with another body."""

    def __init__(self) -> None:
        super().__init__(
            "this idempotency key was used with another body; "
            "send the first body again or take a new key"
        )


class UnknownCursor(LookupError):
    """A listing was to go on after a job that is no longer there (or never was)."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r} to list on after; start the listing again")
        self.job_id = job_id


class WireError(Exception):
    """A job that this process cannot read."""

    def __init__(self, job_id: str, version: int, known: int) -> None:
        super().__init__(
            f"job {job_id!r} was written in wire version {version} and this process reads "
            f"{known} at most: upgrade it"
        )


class LoraBusy(Exception):
    """Another call stores or deletes the same file of an adapter."""

    def __init__(self) -> None:
        super().__init__("the same file is being stored or deleted at this moment")
