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
from service.jobs.storage.errors import StoreError
from service.tracing.log_context import note

log = logging.getLogger("atelier")

TRANSIENT_ERRORS = (RedisError, OSError, StoreError)
"""Errors that pause a batch until its lease expires."""


async def drive_forever(front: FrontEnd, endpoints: Mapping[str, BatchEndpoint]) -> None:
    """Drive up to `batches.driven` batches and delete expired ones, until cancelled."""
    settings = front.settings.batches
    driving: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        while True:
            driving = {task for task in driving if not task.done()}
            try:
                await front.queue.run(ForgetBatches(settings.retention_s))
                if len(driving) < settings.driven and (batch_and_holder := await _take(front)):
                    driving.add(group.create_task(_drive(front, *batch_and_holder, endpoints)))
                    continue
            except TRANSIENT_ERRORS as error:
                log.warning("could not look for batches: %s", error)
            await asyncio.sleep(settings.poll_every_s)


async def _take(front: FrontEnd) -> tuple[Batch, str] | None:
    holder = secrets.token_hex(8)
    batch = await front.queue.take_batch(holder, front.settings.batches.lease_s)
    return (batch, holder) if batch else None


async def _drive(
    front: FrontEnd, batch: Batch, holder: str, endpoints: Mapping[str, BatchEndpoint]
) -> None:
    """Drive one batch; release its lease if this front end stops."""
    note(request_id=batch.request_id, key_id=batch.key_id, tenant=batch.tenant)
    try:
        await BatchDriver(front, batch, holder, endpoints[batch.endpoint]).run()
        log.info("batch %s has ended", batch.id)
    except BatchLeaseLost:
        log.info("batch %s is driven by another front end", batch.id)
    except TRANSIENT_ERRORS as error:
        log.warning("batch %s is paused until its lease expires: %s", batch.id, error)
    except asyncio.CancelledError:
        with suppress(*TRANSIENT_ERRORS):
            await front.queue.run(ReleaseBatch(batch.id, holder))
        raise
    except Exception:
        log.exception("batch %s is paused by an internal error", batch.id)
