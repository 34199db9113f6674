"""The front end's reaper task: expired jobs, and deletion of files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from service.app import create_app
from service.jobs.model.job import Job, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, input_key
from service.settings.queue import QueueSettings
from service.settings.settings import Settings
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SPEC

BRISK = QueueSettings(lease_s=0.02, retention_s=0.02, reap_every_s=0.01, max_attempts=1)


class WatchedStore(Store):
    """Store that counts attempted deletions."""

    tries = 0

    async def delete(self, keys: Iterable[str]) -> None:
        self.tries += bool(keys)
        await super().delete(keys)


async def sweeping(settings: Settings, redis_url: str, store: Store) -> tuple[Queue, Any]:
    brisk = settings.model_copy(update={"queue": BRISK})
    queue = await Queue.connect(redis_url, BRISK)
    await queue.register("pool", SPEC, ready=True)
    return queue, create_app(brisk, queue, store)


async def put(queue: Queue, store: Store) -> Job:
    job = Job(id=new_job_id(), model=MODEL, bucket="any", steps=1)
    await store.put(input_key(job.id, "image"), b"picture", "image/png")
    return (await queue.put(job))[0]


def a_late_job() -> Job:
    """A job past its deadline, which the next reap expires."""
    return Job(id=new_job_id(), model=MODEL, bucket="any", deadline_at=time.time())


async def test_files_leave_with_their_job(
    settings: Settings, redis_url: str, empty_redis: Redis, store: Store
) -> None:
    queue, app = await sweeping(settings, redis_url, store)
    async with app.router.lifespan_context(app):
        job = await put(queue, store)
        await queue.cancel(job.id)

        async def gone() -> bool:
            return not await store.exists(input_key(job.id, "image"))

        await eventually(gone)
        assert await queue.get(job.id) is None
    await queue.close()


async def test_unavailable_store_does_not_delay_requeued_jobs(
    settings: Settings, redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    store = Store(str(folder))
    queue, app = await sweeping(settings, redis_url, store)
    ended = await put(queue, store)
    away = folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    await queue.cancel(ended.id)
    async with app.router.lifespan_context(app):

        async def are_forgotten() -> bool:
            return await queue.get(ended.id) is await queue.get(late.id) is None

        # Not by a lapsed lease: after late reaps on a busy machine, leases are extended.
        late = (await queue.put(a_late_job()))[0]
        await eventually(are_forgotten)
        folder.unlink()
        away.rename(folder)

        async def gone() -> bool:
            return not await store.exists(input_key(ended.id, "image"))

        await eventually(gone)
    await queue.close()


async def test_next_front_end_deletes_leftover_files(
    settings: Settings, redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    """The store is unreachable during the first front end's life; the next front end deletes the
    files."""
    folder = tmp_path / "store"
    store = WatchedStore(str(folder))
    queue, first = await sweeping(settings, redis_url, store)
    ended = await put(queue, store)
    away = folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    await queue.cancel(ended.id)

    async def has_tried_twice() -> bool:
        return store.tries > 1

    async with first.router.lifespan_context(first):
        await eventually(has_tried_twice)
    folder.unlink()
    away.rename(folder)
    other, second = await sweeping(settings, redis_url, store)
    async with second.router.lifespan_context(second):

        async def gone() -> bool:
            return not await store.exists(input_key(ended.id, "image"))

        await eventually(gone)
    await queue.close()
    await other.close()
