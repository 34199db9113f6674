"""Quotas of a tenant in the headers `RateLimit-Policy` and `RateLimit`.

`device-seconds` and `stored-bytes` are no units that the draft registers; left out, the unit would
be read as requests, which is wrong, and an unknown one is not.

Source: draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from service.errors.handlers import REDIS_AWAY
from service.errors.problems import Problem
from service.front_end.front_end import FrontEnd
from service.jobs.queue import QuotaUsage
from service.settings.tenants import TenantSettings

HOUR_S = 3600
NAMES = {
    "queued": "queued jobs",
    "device-seconds": "device-seconds an hour",
    "stored-bytes": "stored bytes",
}
"""Quota names as the headers spell them, and in words."""


def policy(limits: TenantSettings) -> dict[str, str]:
    """The quotas themselves; nothing where there are none."""
    found = list(_policies(limits))
    return {"RateLimit-Policy": ", ".join(found)} if found else {}


def _policies(limits: TenantSettings) -> Iterator[str]:
    if limits.max_queued is not None:
        yield f'"queued";q={limits.max_queued};qu="concurrent-requests"'
    if limits.device_seconds_per_hour is not None:
        quota = math.floor(limits.device_seconds_per_hour)
        yield f'"device-seconds";q={quota};qu="device-seconds";w={HOUR_S}'
    if limits.stored_bytes is not None:
        yield f'"stored-bytes";q={limits.stored_bytes};qu="stored-bytes"'


def left(limits: TenantSettings, standing: QuotaUsage) -> dict[str, str]:
    """The quotas, and what is left of them.

    `t` is when more will be; of what is used up, when anything will be.
    """
    found = list(_left(limits, standing))
    return policy(limits) | ({"RateLimit": ", ".join(found)} if found else {})


def _left(limits: TenantSettings, standing: QuotaUsage) -> Iterator[str]:
    if limits.max_queued is not None:
        yield f'"queued";r={max(0, limits.max_queued - standing.queued)}'
    if limits.device_seconds_per_hour is not None:
        rest = math.floor(max(0.0, limits.device_seconds_per_hour - standing.device_seconds))
        yield f'"device-seconds";r={rest};t={math.ceil(standing.next_s)}'
    if limits.stored_bytes is not None:
        rest = max(0, limits.stored_bytes - standing.stored_bytes)
        yield f'"stored-bytes";r={rest};t={math.ceil(standing.leaves_s)}'


async def of_tenant(
    front: FrontEnd, tenant: str, usage: QuotaUsage | None = None
) -> dict[str, str]:
    """Headers that tell of its quotas, where it has any.

    Args:
        usage: what it has taken of them; None: Redis is asked.
    """
    limits = await front.tenants.of(tenant)
    if not policy(limits):
        return {}
    return left(limits, usage or await front.queue.standing(tenant, limits))


@dataclass(frozen=True)
class QuotaHeaders:
    """Adds the tenant's quota headers to every refusal raised inside, while Redis is there."""

    front: FrontEnd
    tenant: str

    async def __aenter__(self) -> None:
        """Watch for refusals."""

    async def __aexit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        """Let a refusal pass, with its headers."""
        if isinstance(raised, Problem):
            with suppress(*REDIS_AWAY):
                raised.headers = await of_tenant(self.front, self.tenant) | raised.headers
