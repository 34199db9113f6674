"""What a tenant is told of its quotas, in the headers `RateLimit-Policy` and `RateLimit`.

`device-seconds` is no unit that the draft registers; left out, the unit would be read as requests,
which is wrong, and an unknown one is not.

Source: draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from service.jobs.queue import QuotaExceeded, Standing
from service.settings import TenantSettings

HOUR_S = 3600


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


def left(limits: TenantSettings, standing: Standing) -> dict[str, str]:
    """The quotas, and what is left of them. `t` is when more will be."""
    found = list(_left(limits, standing))
    return policy(limits) | ({"RateLimit": ", ".join(found)} if found else {})


def _left(limits: TenantSettings, standing: Standing) -> Iterator[str]:
    if limits.max_queued is not None:
        yield f'"queued";r={max(0, limits.max_queued - standing.queued)}'
    if limits.device_seconds_per_hour is not None:
        rest = math.floor(max(0.0, limits.device_seconds_per_hour - standing.device_seconds))
        yield f'"device-seconds";r={rest};t={math.ceil(standing.next_s)}'


def used_up(limits: TenantSettings, error: QuotaExceeded) -> dict[str, str]:
    """The quotas, and the one of which nothing is left."""
    until = f";t={math.ceil(error.wait_s)}" if error.quota == "device-seconds" else ""
    return policy(limits) | {"RateLimit": f'"{error.quota}";r=0{until}'}
