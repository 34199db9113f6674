"""Refusals: what clients are told of them, and how they are counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from service.admission import quotas
from service.errors.handlers import REDIS_AWAY
from service.errors.problems import Busy, Conflict, FieldError, Invalid, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.errors import DeadlineTooShort, DeadlineTooSoon
from service.jobs.queue import IdempotencyConflict, QueueFull, QuotaExceeded
from service.jobs.storage.errors import StoreError
from service.schemas.request import GenerateRequest
from service.settings.tenants import TenantSettings

Refused = (DeadlineTooSoon, DeadlineTooShort, QueueFull, QuotaExceeded, IdempotencyConflict)
"""Errors that the queue raises instead of taking a job."""


async def problem_of(front: FrontEnd, error: Exception, limits: TenantSettings) -> Problem:
    """Return what a client is told of one of `Refused`."""
    match error:
        case DeadlineTooSoon():
            return Busy(str(error), code="deadline_too_soon", retry_after_s=error.wait_s)
        case DeadlineTooShort():
            too_short = [FieldError("deadline_s", str(error))]
            return Invalid(too_short, code="deadline_too_soon")
        case QueueFull():
            return await _full(front, error)
        case QuotaExceeded():
            return await _beyond_quota(front, error, limits)
        case _:
            return Conflict(str(error), code="idempotency_conflict")


async def _full(front: FrontEnd, error: QueueFull) -> Busy:
    wait_s = await front.costs.slot_free_s(error.model)
    return Busy(f"{error}; try again in {max(1, math.ceil(wait_s))} s", retry_after_s=wait_s)


async def _beyond_quota(front: FrontEnd, error: QuotaExceeded, limits: TenantSettings) -> Busy:
    wait_s, act = error.standing.next_s, ""
    if error.quota == "queued":
        wait_s = await front.costs.turn_s(error.oldest)
    if error.quota == "stored-bytes":
        wait_s, act = error.standing.leaves_s, "delete jobs whose images you have, "
    return Busy(
        f"the tenant's quota of {quotas.NAMES[error.quota]} is used up; {act}try again in"
        f" {max(1, math.ceil(wait_s))} s, or ask the operator for more",
        code="quota_exceeded",
        retry_after_s=wait_s,
        headers=quotas.left(limits, error.standing),
        members={"violated-policies": [error.quota]},
    )


@dataclass
class Attempt:
    """Attempt of a client to have a request admitted."""

    body: GenerateRequest | None = None
    """Once it is read."""

    def model(self, front: FrontEnd) -> str:
        """Name of the model for metrics; empty where there is no such model."""
        known = front.models.known
        if self.body is None:
            return ""
        if self.body.model is None:
            return next(iter(known)) if len(known) == 1 else ""
        return self.body.model if self.body.model in known else ""


@contextmanager
def counting_refusals(front: FrontEnd, tenant: str) -> Iterator[Attempt]:
    """Count what goes wrong in here as a refusal, by its reason."""
    attempt, reason = Attempt(), None
    try:
        yield attempt
    except Problem as problem:
        reason = problem.code
        raise
    except REDIS_AWAY:
        reason = "queue_unreachable"
        raise
    except StoreError:
        reason = "store_unreachable"
        raise
    finally:
        if reason:
            tenant_class = front.settings.tenant(tenant).metrics_class
            front.telemetry.refused.labels(attempt.model(front), tenant_class, reason).inc()
