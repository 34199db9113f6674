"""Rejected requests: the problem that a client receives, and the metrics that count it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from service.admission import quotas
from service.admission.parse import parse_body
from service.errors.handlers import REDIS_UNREACHABLE
from service.errors.problems import Busy, Conflict, FieldError, Invalid, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.errors import DeadlineTooShort, DeadlineTooSoon
from service.jobs.queue import IdempotencyConflict, QueueFull, QuotaExceeded
from service.jobs.storage.errors import StoreError
from service.metrics.front_end import UNKNOWN
from service.schemas.request import GenerateRequest
from service.settings.tenants import TenantSettings

REDIS_REASON = "queue_unreachable"
"""Reason of requests rejected without Redis, which stores the models' names."""
LOOKUP_TIMEOUT_S = 1.0
"""Maximum time that a rejected request waits for the models' names, in seconds."""
AdmissionErrors = (DeadlineTooSoon, DeadlineTooShort, QueueFull, QuotaExceeded, IdempotencyConflict)
"""Errors that the queue raises when it rejects a job."""


async def problem_of(front: FrontEnd, error: Exception, limits: TenantSettings) -> Problem:
    """Convert an error of `AdmissionErrors` to the problem that the client receives."""
    match error:
        case DeadlineTooSoon():
            return Busy(str(error), code="deadline_too_soon", retry_after_s=error.wait_s)
        case DeadlineTooShort():
            too_short = [FieldError("deadline_s", str(error))]
            return Invalid(too_short, code="deadline_too_soon")
        case QueueFull():
            return await _queue_full(front, error)
        case QuotaExceeded():
            return await _quota_exceeded(front, error, limits)
        case _:
            return Conflict(str(error), code="idempotency_conflict")


@asynccontextmanager
async def within_quotas(front: FrontEnd, tenant: str) -> AsyncIterator[None]:
    """Convert a `QuotaExceeded` raised inside the context to a problem. Raises: Busy."""
    try:
        yield
    except QuotaExceeded as error:
        raise await _quota_exceeded(front, error, await front.tenants.of(tenant)) from None


async def _queue_full(front: FrontEnd, error: QueueFull) -> Busy:
    wait_s = await front.costs.slot_free_s(error.model)
    return Busy(f"{error}; try again in {max(1, math.ceil(wait_s))} s", retry_after_s=wait_s)


async def _quota_exceeded(front: FrontEnd, error: QuotaExceeded, limits: TenantSettings) -> Busy:
    wait_s, act = error.usage.next_s, ""
    if error.quota == "queued":
        wait_s = await front.costs.next_start_s(error.oldest)
    if error.quota == "stored-bytes":
        wait_s, act = error.usage.leaves_s, "delete jobs and files that you no longer need, "
    return Busy(
        f"the tenant's quota of {quotas.NAMES[error.quota]} is used up; {act}try again in"
        f" {max(1, math.ceil(wait_s))} s, or ask the operator for more",
        code="quota_exceeded",
        retry_after_s=wait_s,
        headers=quotas.quota_headers(limits, error.usage),
        members={"violated-policies": [error.quota]},
    )


@dataclass
class Attempt:
    """Model named by a request, recorded for metrics before the request is validated."""

    model_name: str | None = None
    """Model that the request names; None: the only model of this server."""
    is_read: bool = False
    """True once a body that could name a model has been read."""

    def record_model(self, model: Any) -> None:
        """Record a body's `model` value, before any other field is checked."""
        self.model_name, self.is_read = model if isinstance(model, str) else None, True

    def read(self, fields: Mapping[str, Any]) -> GenerateRequest:
        """Record the body's model, then parse the body as a `GenerateRequest`. Raises: Invalid."""
        self.record_model(fields.get("model"))
        return parse_body(fields)

    async def model(self, front: FrontEnd) -> str:
        """Return the model's name as a metric label; `UNKNOWN` if no model has this name."""
        models = front.models.last_read
        if self._name(front) not in models:
            with suppress(TimeoutError, *REDIS_UNREACHABLE):
                async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                    models = await front.models.all()
        if self.is_read and self.model_name is None:
            return front.models.only() or UNKNOWN
        name = self._name(front)
        return name if name in models else UNKNOWN

    def _name(self, front: FrontEnd) -> str:
        return front.models.name_of(self.model_name or "")


@asynccontextmanager
async def counting_refusals(front: FrontEnd, tenant: str) -> AsyncIterator[Attempt]:
    """Count an error raised inside as a rejected request, labelled by its reason."""
    attempt, reason = Attempt(), None
    try:
        yield attempt
    except Problem as problem:
        reason = problem.code
        raise
    except REDIS_UNREACHABLE:
        reason = REDIS_REASON
        raise
    except StoreError:
        reason = "store_unreachable"
        raise
    finally:
        if reason:
            model = UNKNOWN
            if reason != REDIS_REASON:
                model = await attempt.model(front)
                with suppress(TimeoutError, *REDIS_UNREACHABLE):
                    async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                        await front.tenants.of(tenant)
            tenant_class = front.tenants.cached(tenant).metrics_class
            front.telemetry.refused.labels(model, tenant_class, reason).inc()
