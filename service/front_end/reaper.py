"""Background task that requeues lost jobs and deletes the files of expired ones."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from service.front_end.front_end import FrontEnd
from service.jobs.storage.errors import StoreError

log = logging.getLogger("atelier")


async def sweep_forever(front: FrontEnd) -> None:
    """Delete expired jobs and files and requeue abandoned jobs, every `reap_every_s`.

    Jobs are requeued even if the store is unavailable. Files stay listed in Redis until they are
    deleted, so a crash loses none.
    """
    deleted: list[str] = []
    while True:
        try:
            files = await front.queue.reap(deleted)
            deleted = []
            await front.store.delete(files)
            deleted = files
        except (RedisError, OSError, StoreError) as error:
            log.warning("could not sweep: %s", error)
        await asyncio.sleep(front.settings.queue.reap_every_s)
