"""A pool of the toy pipeline whose files may have no more than a few bytes.

`python -m tests.workers.full_store REDIS FOLDER BYTES`. The kernel refuses to write more of a file,
as a full disk does. It needs no privilege, and can be lifted from outside (prlimit).
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
from workers.pool.worker import Worker
from workers.slice.mesh import one_device

SETTINGS = QueueSettings(max_attempts=2)


async def main(url: str, folder: Path, most_bytes: int) -> None:
    queue = await Queue.connect(url, SETTINGS)
    engine = Engine(ToyPipeline(), one_device(jax.devices()[0]), slots=2)
    wanted = PoolSettings(model=SPEC.name, preview_every_s=0, store_patience_s=0.5)
    pool = Worker("toy", engine, queue, Store(str(folder)), wanted, SETTINGS.lease_s)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most))
    await pool.run([{}])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
