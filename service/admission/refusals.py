"""Refusals: what clients are told of them, and how they are counted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from service.admission import quotas
from service.admission.parse import parse_body
from service.errors.handlers import REDIS_AWAY
from service.errors.problems import Busy, Conflict, FieldError, Invalid, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.errors import DeadlineTooShort, DeadlineTooSoon
from service.jobs.queue import IdempotencyConflict, QueueFull, QuotaExceeded
from service.jobs.storage.errors import StoreError
from service.metrics.http import UNKNOWN
from service.schemas.request import GenerateRequest
from service.settings.tenants import TenantSettings

AWAY = "queue_unreachable"
"""Reason of what is refused without Redis, which knows the models."""
LOOK_S = 1.0
"""Time that a refused request waits for the models' names at most."""
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


@asynccontextmanager
async def within_quotas(front: FrontEnd, tenant: str) -> AsyncIterator[None]:
    """Raises: Busy: in place of a `QuotaExceeded` raised inside."""
    try:
        yield
    except QuotaExceeded as error:
        raise await _beyond_quota(front, error, await front.tenants.of(tenant)) from None


async def _full(front: FrontEnd, error: QueueFull) -> Busy:
    wait_s = await front.costs.slot_free_s(error.model)
    return Busy(f"{error}; try again in {max(1, math.ceil(wait_s))} s", retry_after_s=wait_s)


async def _beyond_quota(front: FrontEnd, error: QuotaExceeded, limits: TenantSettings) -> Busy:
    wait_s, act = error.standing.next_s, ""
    if error.quota == "queued":
        wait_s = await front.costs.turn_s(error.oldest)
    if error.quota == "stored-bytes":
        wait_s, act = error.standing.leaves_s, "delete jobs and files that you need no more, "
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

    named: str | None = None
    """Model that it names; None: none, which is the only one there is."""
    is_read: bool = False
    """True once there is a body that could name one."""

    def names(self, model: Any) -> None:
        """Note what a body has for its model, before anything else of it is checked."""
        self.named, self.is_read = model if isinstance(model, str) else None, True

    def read(self, fields: Mapping[str, Any]) -> GenerateRequest:
        """Read a body in our fields. Raises: Invalid."""
        self.names(fields.get("model"))
        return parse_body(fields)

    async def model(self, front: FrontEnd) -> str:
        """Return the name of the model for metrics; empty where there is no such model."""
        known = front.models.known
        if self.named not in known:
            with suppress(TimeoutError, *REDIS_AWAY):
                async with asyncio.timeout(LOOK_S):
                    known = await front.models.all()
        if self.is_read and self.named is None:
            return front.models.only() or UNKNOWN
        return self.named if self.named and self.named in known else UNKNOWN


@asynccontextmanager
async def counting_refusals(front: FrontEnd, tenant: str) -> AsyncIterator[Attempt]:
    """Count what goes wrong in here as a refusal, by its reason."""
    attempt, reason = Attempt(), None
    try:
        yield attempt
    except Problem as problem:
        reason = problem.code
        raise
    except REDIS_AWAY:
        reason = AWAY
        raise
    except StoreError:
        reason = "store_unreachable"
        raise
    finally:
        if reason:
            model = UNKNOWN
            if reason != AWAY:
                model = await attempt.model(front)
                with suppress(TimeoutError, *REDIS_AWAY):
                    async with asyncio.timeout(LOOK_S):
                        await front.tenants.of(tenant)
            tenant_class = front.tenants.known(tenant).metrics_class
            front.telemetry.refused.labels(model, tenant_class, reason).inc()
