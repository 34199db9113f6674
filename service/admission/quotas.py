"""Quotas of a tenant in the headers `RateLimit-Policy` and `RateLimit`.

The draft does not register the units `device-seconds` and `stored-bytes`. Without a unit, clients
would count requests, which is wrong; an unknown unit is not.

Source: draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from service.errors.handlers import REDIS_UNREACHABLE
from service.errors.problems import Problem
from service.front_end.front_end import FrontEnd
from service.jobs.queue import QuotaUsage
from service.settings.tenants import TenantSettings

HOUR_S = 3600
NAMES = {
    "queued": "queued jobs",
    "device-seconds": "device-seconds per hour",
    "stored-bytes": "stored bytes",
}
"""Quota names of the headers, with the text for messages."""


def policy_header(limits: TenantSettings) -> dict[str, str]:
    """Format the tenant's quotas as a `RateLimit-Policy` header; empty if there are no quotas."""
    policies = list(_policies(limits))
    return {"RateLimit-Policy": ", ".join(policies)} if policies else {}


def _policies(limits: TenantSettings) -> Iterator[str]:
    if limits.max_queued is not None:
        yield f'"queued";q={limits.max_queued};qu="concurrent-requests"'
    if limits.device_seconds_per_hour is not None:
        quota = math.floor(limits.device_seconds_per_hour)
        yield f'"device-seconds";q={quota};qu="device-seconds";w={HOUR_S}'
    if limits.stored_bytes is not None:
        yield f'"stored-bytes";q={limits.stored_bytes};qu="stored-bytes"'


def quota_headers(limits: TenantSettings, usage: QuotaUsage) -> dict[str, str]:
    """Format the quotas and their remainders as `RateLimit-Policy` and `RateLimit` headers.

    `t` is the number of seconds until more is available.
    """
    remainders = list(_remainders(limits, usage))
    return policy_header(limits) | ({"RateLimit": ", ".join(remainders)} if remainders else {})


def _remainders(limits: TenantSettings, usage: QuotaUsage) -> Iterator[str]:
    if limits.max_queued is not None:
        yield f'"queued";r={max(0, limits.max_queued - usage.queued)}'
    if limits.device_seconds_per_hour is not None:
        rest = math.floor(max(0.0, limits.device_seconds_per_hour - usage.device_seconds))
        yield f'"device-seconds";r={rest};t={math.ceil(usage.next_s)}'
    if limits.stored_bytes is not None:
        rest = max(0, limits.stored_bytes - usage.stored_bytes)
        yield f'"stored-bytes";r={rest};t={math.ceil(usage.leaves_s)}'


async def headers_of_tenant(
    front: FrontEnd, tenant: str, usage: QuotaUsage | None = None
) -> dict[str, str]:
    """Build the quota headers of a tenant; empty if the tenant has no quotas.

    Args:
        usage: the tenant's usage of its quotas; None: it is read from Redis.
    """
    limits = await front.tenants.of(tenant)
    if not policy_header(limits):
        return {}
    return quota_headers(limits, usage or await front.queue.quota_usage(tenant, limits))


@dataclass(frozen=True)
class QuotaHeaders:
    """Async context manager that adds the tenant's quota headers to a `Problem` raised inside.

    Without Redis it adds none.
    """

    front: FrontEnd
    tenant: str

    async def __aenter__(self) -> None:
        """Do nothing on entry."""

    async def __aexit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        """Add the quota headers to a raised `Problem`, which propagates."""
        if isinstance(raised, Problem):
            with suppress(*REDIS_UNREACHABLE):
                raised.headers = await headers_of_tenant(self.front, self.tenant) | raised.headers
