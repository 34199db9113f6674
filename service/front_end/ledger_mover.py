"""The front end's clerk: moves the ledger's records from Redis to files in the store."""

from __future__ import annotations

import asyncio
import logging
import secrets

from redis.exceptions import RedisError

from service.front_end.front_end import FrontEnd
from service.jobs.queue import Queue
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store, ledger_key
from service.settings.usage import UsageSettings

LEASE_S = 60.0
"""Time after which another front end writes a file whose writer is not heard of."""
GZIP = "application/gzip"

log = logging.getLogger("atelier")


async def move_forever(front: FrontEnd) -> None:
    """Look for a file every `reap_every_s`; what fails, a later round does, of any front end."""
    holder = secrets.token_hex(8)
    while True:
        try:
            while await move_file(front.queue, front.store, front.settings.usage, holder):
                pass
        except (RedisError, OSError, StoreError) as error:
            log.warning("could not store the ledger: %s", error)
        await asyncio.sleep(front.settings.queue.reap_every_s)


async def move_file(queue: Queue, store: Store, usage: UsageSettings, holder: str) -> bool:
    """Move one file that is due; False: there is none.

    Its records leave Redis once the store has it. Whoever does this again, after whatever death,
    writes the same file under the same key; a Redis that was restored in between may write some of
    them again under another key, and readers drop repeats.

    Raises: RedisError, OSError, StoreError.
    """
    file = await queue.take_ledger(holder, LEASE_S, usage)
    if file is None:
        return False
    lines = await queue.ledger_lines(file)
    if lines is not None:
        await store.put(ledger_key(*file), lines, GZIP)
        await queue.trim_ledger(file)
    return True
