"""The front end's broom: takes back lost jobs, and deletes the files of forgotten ones."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from service.front_end.front_end import FrontEnd
from service.jobs.storage.errors import StoreError

log = logging.getLogger("atelier")


async def sweep_forever(front: FrontEnd) -> None:
    """A round every `reap_every_s`; what one leaves undone, the next does again.

    Jobs are taken back even while the store is away: their files wait here until it is there.
    """
    gone: set[str] = set()
    while True:
        try:
            gone.update(await front.queue.reap())
            await front.store.delete(gone)
            gone.clear()
        except (RedisError, OSError, StoreError) as error:
            log.warning("could not sweep: %s", error)
        await asyncio.sleep(front.settings.queue.reap_every_s)
