"""The front end's broom: takes back lost jobs, and deletes the files of forgotten ones."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from service.front_end.front_end import FrontEnd
from service.jobs.storage.errors import StoreError

log = logging.getLogger("atelier")


async def sweep_forever(front: FrontEnd) -> None:
    """Sweep every `reap_every_s`; what a round leaves undone, a later one does, of any front end.

    Jobs are taken back while the store is away, too. Their files stay listed in Redis until they
    are deleted: a front end that dies in between loses none.
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
