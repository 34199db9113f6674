"""Readiness: whether this front end can accept and serve requests, and queue gauges."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal
from uuid import uuid4

from redis.exceptions import BusyLoadingError, RedisError

from service.errors.handlers import log
from service.front_end.front_end import FrontEnd
from service.front_end.models import with_variants
from service.jobs.ledger_files import ReadTotals
from service.jobs.queue import ModelStatus
from service.jobs.storage.errors import StoreError

CHECK_S = 2.0
"""Timeout after which a dependency counts as unavailable."""


Check = Literal["redis"]
"""Check that a probe may request alone."""


async def reasons_against(front: FrontEnd, only: Check | None = None) -> dict[str, str]:
    """Return the reasons why this front end is not ready, by check; empty: it is ready."""
    if only == "redis":
        return await _queue(front, with_models=False)
    reasons = {**await _queue(front), **await _store(front)}
    return dict(sorted(reasons.items()))


async def _queue(front: FrontEnd, *, with_models: bool = True) -> dict[str, str]:
    try:
        async with asyncio.timeout(CHECK_S):
            await front.queue.ping()
            if (await front.queue.memory()).is_full:
                return {"redis": "Redis refuses writes: its memory has reached maxmemory"}
            return _models(await front.queue.models()) if with_models else {}
    except BusyLoadingError:
        return {"redis": "Redis is still loading its data"}
    except (RedisError, OSError, TimeoutError):
        return {"redis": "Redis cannot be reached"}


def _models(models: Mapping[str, ModelStatus]) -> dict[str, str]:
    if not models:
        return {"models": "no model is registered: no worker has started yet"}
    if not any(status.ready for status in models.values()):
        names = ", ".join(sorted(models))
        return {"pools": f"no worker is ready (models: {names})"}
    return {}


async def _store(front: FrontEnd) -> dict[str, str]:
    key = f"probes/{uuid4().hex}"
    try:
        async with asyncio.timeout(CHECK_S):
            await front.store.put(key, b"ready?", "text/plain")
            await front.store.delete([key])
    except (StoreError, TimeoutError) as error:
        log.warning("the store cannot be written: %s", error)
        return {"store": "the store cannot be written; this server's log has the reason"}
    return {}


async def refresh_gauges(front: FrontEnd) -> None:
    """Read models and queue lengths for a scrape; without Redis these metrics are omitted."""
    telemetry = front.telemetry
    models: Mapping[str, ModelStatus] = {}
    classes: list[str] = []
    try:
        async with asyncio.timeout(CHECK_S):
            models, depths = await front.queue.models(), await front.queue.depths()
            classes, totals = await front.tenants.classes(), await front.queue.run(ReadTotals())
            paused = await front.queue.pauses()
            memory, backup_age_s = await front.queue.memory(), await front.queue.backup_age_s()
            await front.models.all()
    except (RedisError, OSError, TimeoutError):
        telemetry.queue.clear()
        telemetry.redis.clear()
        telemetry.ledger.clear()
    else:
        telemetry.queue.update(models, depths, paused)
        telemetry.redis.update(memory, backup_age_s)
        telemetry.ledger.update(totals, models, classes)
        telemetry.versions.update(front.models.aliases.cached)
    telemetry.expect(models, classes, with_variants(models))
