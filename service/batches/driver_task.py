"""Background task of a front end: claim batches without a driver, and drive them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress

from redis.exceptions import RedisError

from service.batches.driver import BatchDriver, BatchLeaseLost
from service.batches.endpoint import BatchEndpoint
from service.front_end.front_end import FrontEnd
from service.jobs.batches import ForgetBatches, ReleaseBatch
from service.jobs.model.batch import Batch
from service.jobs.redis.tasks import ended
from service.jobs.storage.errors import StoreError
from service.tracing.log_context import note

log = logging.getLogger("atelier")

TRANSIENT_ERRORS = (RedisError, OSError, StoreError)
"""Errors that pause a batch until its lease expires."""


async def drive_forever(front: FrontEnd, endpoints: Mapping[str, BatchEndpoint]) -> None:
    """Drive up to `batches.driven` batches and delete expired ones, until cancelled."""
    settings = front.settings.batches
    driving: dict[asyncio.Task[None], ReleaseBatch] = {}
    try:
        async with asyncio.TaskGroup() as group:
            while True:
                driving = {task: lease for task, lease in driving.items() if not task.done()}
                try:
                    await front.queue.run(ForgetBatches(settings.retention_s))
                    if len(driving) < settings.driven and (taken := await _take(front)):
                        task = group.create_task(_drive(front, *taken, endpoints))
                        driving[task] = ReleaseBatch(taken[0].id, taken[1])
                        continue
                except TRANSIENT_ERRORS as error:
                    log.warning("could not look for batches: %s", error)
                await asyncio.sleep(settings.poll_every_s)
    finally:  # not in the tasks: one that is cancelled before it starts would release nothing
        for lease in driving.values():
            await ended(asyncio.create_task(_release(front, lease)))


async def _take(front: FrontEnd) -> tuple[Batch, str] | None:
    """Acquire the lease of a batch; release it if this front end stops meanwhile."""
    holder = secrets.token_hex(8)
    taking = asyncio.ensure_future(front.queue.take_batch(holder, front.settings.batches.lease_s))
    try:
        batch = await asyncio.shield(taking)
    except asyncio.CancelledError:
        await ended(asyncio.create_task(_release_taken(front, taking, holder)))
        raise
    return (batch, holder) if batch else None


async def _release_taken(
    front: FrontEnd, taking: asyncio.Future[Batch | None], holder: str
) -> None:
    with suppress(*TRANSIENT_ERRORS):
        if batch := await taking:
            await _release(front, ReleaseBatch(batch.id, holder))


async def _release(front: FrontEnd, lease: ReleaseBatch) -> None:
    """Release the lease of a batch, so that another front end continues it at once."""
    with suppress(*TRANSIENT_ERRORS):
        await front.queue.run(lease)


async def _drive(
    front: FrontEnd, batch: Batch, holder: str, endpoints: Mapping[str, BatchEndpoint]
) -> None:
    """Drive one batch to its end."""
    note(request_id=batch.request_id, key_id=batch.key_id, tenant=batch.tenant)
    try:
        await BatchDriver(front, batch, holder, endpoints[batch.endpoint]).run()
        log.info("batch %s has ended", batch.id)
    except BatchLeaseLost:
        log.info("batch %s is driven by another front end", batch.id)
    except TRANSIENT_ERRORS as error:
        log.warning("batch %s is paused until its lease expires: %s", batch.id, error)
    except Exception:
        log.exception("batch %s is paused by an internal error", batch.id)
