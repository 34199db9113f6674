"""Background task that moves usage ledger records from Redis to files in the store."""

from __future__ import annotations

import asyncio
import logging
import secrets

from redis.exceptions import RedisError

from service.front_end.front_end import FrontEnd
from service.jobs.ledger_files import TrimLedger
from service.jobs.queue import Queue
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store, ledger_key
from service.settings.usage import UsageSettings

LEASE_S = 60.0
"""Time after which another front end writes the file of a writer that stopped responding."""
GZIP = "application/gzip"

log = logging.getLogger("atelier")


async def move_forever(front: FrontEnd) -> None:
    """Move usage ledger files from Redis to the store every `reap_every_s`, with retries."""
    holder = secrets.token_hex(8)
    while True:
        try:
            while await move_file(front.queue, front.store, front.settings.usage, holder):
                pass
        except (RedisError, OSError, StoreError) as error:
            log.warning("could not store the ledger: %s", error)
        await asyncio.sleep(front.settings.queue.reap_every_s)


async def move_file(queue: Queue, store: Store, usage: UsageSettings, holder: str) -> bool:
    """Move one file of the usage ledger, if due, to the store; False: none is due.

    Its records are deleted from Redis once the store has it. A retry after a crash writes the same
    file under the same key. After a restore of Redis, some records may be written again under
    another key; readers drop duplicates.

    Raises: RedisError, OSError, StoreError.
    """
    file = await queue.take_ledger(holder, LEASE_S, usage)
    if file is None:
        return False
    lines = await queue.ledger_lines(file)
    if lines is not None:
        await store.put(ledger_key(*file), lines, GZIP)
        await queue.run(TrimLedger(*file))
    return True
