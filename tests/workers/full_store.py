"""Program that runs a worker of the toy pipeline whose files cannot exceed a few bytes.

`python -m tests.workers.full_store REDIS FOLDER BYTES`. The kernel rejects longer writes, as on a
full disk. The limit needs no privilege, and another process can lift it (prlimit).
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import jax

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from service.settings.queue import QueueSettings
from tests.workers.toy import SPEC, ToyPipeline
from workers.engine.engine import Engine
from workers.pool.worker import Worker, WorkerParts
from workers.slice.mesh import one_device

SETTINGS = QueueSettings(max_attempts=2)


async def main(url: str, folder: Path, max_bytes: int) -> None:
    queue = await Queue.connect(url, SETTINGS)
    engine = Engine(ToyPipeline(), one_device(jax.devices()[0]), slots=2)
    pool_settings = PoolSettings(model=SPEC.name, preview_every_s=0, store_patience_s=0.5)
    worker = Worker(
        "toy", WorkerParts(engine, queue, Store(str(folder))), pool_settings, SETTINGS.lease_s
    )
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard_limit))
    await worker.run([{}])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
