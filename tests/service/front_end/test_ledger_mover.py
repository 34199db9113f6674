"""Export of the ledger to the store: each record once, despite crashes, failures and repeats."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from typing import Any

import pytest
from redis.asyncio import Redis

from service.app import create_app
from service.front_end.ledger_mover import move_file
from service.jobs import ledger_files
from service.jobs.ledger_files import ReadTotals, TrimLedger
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.settings import Settings
from service.settings.usage import UsageSettings
from tests.service.eventually import eventually
from tests.service.jobs.examples import a_job

HOURLY = UsageSettings()
HOUR_MS = 3_600_000
LEASE = f"{keys.PREFIX}ledgerlease"
KILLED = """
import asyncio, sys
from service.front_end import ledger_mover
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.usage import UsageSettings

url, folder, when = sys.argv[1:]

class Halting(Store):
    async def put(self, key, data, content_type):
        if when == "before":
            await self.halt()
        await super().put(key, data, content_type)
        await self.halt()

    async def halt(self):
        print("here", flush=True)
        await asyncio.Event().wait()

async def main():
    queue = await Queue.connect(url, QueueSettings())
    await ledger_mover.move_file(queue, Halting(folder), UsageSettings(), "killed")

asyncio.run(main())
"""
"""A front end that hangs before or after it writes its file, until it is killed."""


class Failing(Store):
    """Store whose `put` fails before or after it has written."""

    fails_after = False

    async def put(self, key: str, data: bytes, content_type: str) -> None:
        if self.fails_after:
            await super().put(key, data, content_type)
        raise StoreError("the store is away")


async def write(redis: Redis, hour: int, count: int) -> list[str]:
    """Add ledger records for a past hour; return their jobs."""
    jobs = [f"job_{hour}_{number}" for number in range(count)]
    for number, job in enumerate(jobs):
        await redis.xadd(
            keys.LEDGER, {"record": json.dumps({"job": job})}, f"{hour * HOUR_MS}-{number}"
        )
    return jobs


async def stored(store: Store) -> list[str]:
    """Jobs in all ledger files; asserts that no record is repeated."""
    records = []
    for key in await store.below("ledger"):
        lines = gzip.decompress(await store.get(key)).decode().splitlines()
        records += [json.loads(line) for line in lines]
    ids = [line["id"] for line in records]
    assert len(ids) == len(set(ids))
    return [line["job"] for line in records]


async def move_all(queue: Queue, store: Store, holder: str = "me") -> int:
    count = 0
    while await move_file(queue, store, HOURLY, holder):
        count += 1
    return count


async def test_each_hour_is_a_file(queue: Queue, store: Store) -> None:
    jobs = [job for hour in (1, 2, 30) for job in await write(queue.redis, hour, 3)]
    assert await move_all(queue, store) == 3
    assert await store.below("ledger") == [
        "ledger/1970/01/01/01/3600000-0-3600000-2.jsonl.gz",
        "ledger/1970/01/01/02/7200000-0-7200000-2.jsonl.gz",
        "ledger/1970/01/02/06/108000000-0-108000000-2.jsonl.gz",
    ]
    assert await stored(store) == jobs
    assert await queue.redis.xlen(keys.LEDGER) == 0


async def test_ledger_file_of_the_current_hour_is_not_due(queue: Queue, store: Store) -> None:
    job, _ = await queue.put(a_job())
    await queue.cancel(job.id)
    assert await move_all(queue, store) == 0
    assert (await queue.run(ReadTotals())).pending == 1


async def test_a_busy_hour_has_several_files(
    queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_files, "MAX_RECORDS", 4)
    monkeypatch.setattr(ledger_files, "PAGE", 3)
    jobs = await write(queue.redis, 1, 10)
    assert await move_all(queue, store) == 3
    assert await stored(store) == jobs


@pytest.mark.processes
@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_ledger_mover_neither_loses_nor_repeats_records(
    queue: Queue, store: Store, settings: Settings, redis_url: str, when: str
) -> None:
    jobs = [*await write(queue.redis, 1, 5), *await write(queue.redis, 2, 5)]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, redis_url, settings.store_url, when),
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"here\n"
    assert len(await store.below("ledger")) == (when == "after")
    assert await move_all(queue, store) == 0, "the lease is still valid"
    child.kill()
    await child.wait()
    await write(queue.redis, 3, 1)  # a new record changes no file that was begun
    await queue.redis.delete(LEASE)
    assert await move_all(queue, store) == 3
    assert await stored(store) == [*jobs, "job_3_0"]


@pytest.mark.parametrize("fails_after", [False, True])
async def test_failing_store_is_retried(
    queue: Queue, store: Store, settings: Settings, fails_after: bool
) -> None:
    jobs = await write(queue.redis, 1, 5)
    failing = Failing(settings.store_url)
    failing.fails_after = fails_after
    for _ in range(2):
        with pytest.raises(StoreError):
            await move_file(queue, failing, HOURLY, "me")
    assert await queue.redis.xlen(keys.LEDGER) == 5
    assert await move_all(queue, store) == 1
    assert await stored(store) == jobs


async def test_two_writers_of_a_ledger_file_write_it_once(queue: Queue, store: Store) -> None:
    """The first writer loses its lease and continues, at any point of the second writer's
    progress."""
    jobs = await write(queue.redis, 1, 5)
    slow = await queue.take_ledger("slow", 60, HOURLY)
    assert slow is not None
    lines = await queue.ledger_lines(slow)
    await queue.redis.delete(LEASE)
    quick = await queue.take_ledger("quick", 60, UsageSettings(file_every_s=1))
    assert quick == slow, "a file's records are fixed once"
    assert await queue.ledger_lines(slow) == lines
    assert await queue.run(TrimLedger(*slow))
    assert await queue.ledger_lines(slow) is None, "a partial file must not replace a complete one"
    later = await write(queue.redis, 2, 2)
    assert not await queue.run(TrimLedger(*slow))
    assert await queue.redis.xlen(keys.LEDGER) == len(later)
    assert lines is not None
    assert [json.loads(line)["job"] for line in gzip.decompress(lines).splitlines()] == jobs


async def test_front_ends_share_the_ledger_files(
    queue: Queue, store: Store, settings: Settings, redis_url: str, empty_redis: Redis
) -> None:
    jobs = [job for hour in range(1, 9) for job in await write(queue.redis, hour, 20)]
    brisk = settings.model_copy(update={"queue": QueueSettings(reap_every_s=0.01)})
    queues = [await Queue.connect(redis_url, brisk.queue) for _ in range(3)]
    apps: list[Any] = [create_app(brisk, item, store) for item in queues]
    async with (
        apps[0].router.lifespan_context(apps[0]),
        apps[1].router.lifespan_context(apps[1]),
        apps[2].router.lifespan_context(apps[2]),
    ):

        async def all_there() -> bool:
            return not await empty_redis.xlen(keys.LEDGER)

        await eventually(all_there)
    assert await stored(store) == jobs
    for item in queues:
        await item.close()


async def test_restored_records_are_written_to_the_same_file(queue: Queue, store: Store) -> None:
    """After a restart Redis contains trimmed records again: they are written to the same file."""
    jobs = await write(queue.redis, 1, 5)
    await move_all(queue, store)
    await queue.redis.delete(keys.LEDGER)
    await write(queue.redis, 1, 5)
    await move_all(queue, store)
    assert await stored(store) == jobs
