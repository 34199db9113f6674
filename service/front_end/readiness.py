"""Readiness: whether a request would be accepted and served now, and how much is queued."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal
from uuid import uuid4

from redis.exceptions import BusyLoadingError, RedisError

from service.front_end.front_end import FrontEnd
from service.front_end.models import with_variants
from service.jobs.queue import ModelStatus
from service.jobs.storage.errors import StoreError

CHECK_S = 2.0
"""A dependency that has not answered by then counts as away."""


Check = Literal["redis"]
"""Check that can be asked for alone."""


async def reasons_against(front: FrontEnd, only: Check | None = None) -> dict[str, str]:
    """Return why this front end is not ready, by check; empty: it is ready."""
    if only == "redis":
        return await _queue(front, with_models=False)
    reasons = {**await _queue(front), **await _store(front)}
    return dict(sorted(reasons.items()))


async def _queue(front: FrontEnd, *, with_models: bool = True) -> dict[str, str]:
    try:
        async with asyncio.timeout(CHECK_S):
            await front.queue.ping()
            return _models(await front.queue.models()) if with_models else {}
    except BusyLoadingError:
        return {"redis": "Redis is still reading its file"}
    except (RedisError, OSError, TimeoutError):
        return {"redis": "Redis cannot be reached"}


def _models(models: Mapping[str, ModelStatus]) -> dict[str, str]:
    if not models:
        return {"models": "no model is registered: no pool has started yet"}
    if not any(status.ready for status in models.values()):
        names = ", ".join(sorted(models))
        return {"pools": f"no pool is ready (models: {names})"}
    return {}


async def _store(front: FrontEnd) -> dict[str, str]:
    key = f"probes/{uuid4().hex}"
    try:
        async with asyncio.timeout(CHECK_S):
            await front.store.put(key, b"ready?", "text/plain")
            await front.store.delete([key])
    except (StoreError, TimeoutError) as error:
        return {"store": f"the store cannot be written: {error}"}
    return {}


async def refresh_gauges(front: FrontEnd) -> None:
    """Read models and queue lengths for a scrape; without Redis they are left out."""
    telemetry = front.telemetry
    models: Mapping[str, ModelStatus] = {}
    classes: list[str] = []
    try:
        async with asyncio.timeout(CHECK_S):
            models, depths = await front.queue.models(), await front.queue.depths()
            classes, totals = await front.tenants.classes(), await front.queue.totals()
            paused = await front.queue.pauses()
            await front.models.all()
    except (RedisError, OSError, TimeoutError):
        telemetry.queue.away()
        telemetry.ledger.away()
    else:
        telemetry.queue.look(models, depths, paused)
        telemetry.ledger.look(totals, models, classes)
        telemetry.versions.look(front.models.aliases.known)
    telemetry.expect(models, classes, with_variants(models))
