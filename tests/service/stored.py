"""Check of stored bytes: the tenants' files in the store against the bytes that quotas count."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping

import pytest
from redis.asyncio import Redis

from service.jobs.queue import Queue
from service.jobs.redis.keys import PREFIX
from service.jobs.storage.errors import NotStored
from service.jobs.storage.object_store import Store, job_folders


@pytest.fixture(autouse=True)
async def stored_bytes_are_counted(
    request: pytest.FixtureRequest, queue: Queue, store: Store
) -> AsyncIterator[None]:
    """Fail a test after which quotas and store disagree about a tenant's bytes."""
    yield
    if request.node.get_closest_marker("changes_files"):
        return
    names = await _names(queue.redis)
    in_quotas = await counted(queue.redis, names["stored"])
    in_store = await stored_sizes(queue.redis, names, store)
    assert in_quotas == in_store, f"quotas count {in_quotas}, the store has {in_store}"


async def _names(redis: Redis) -> Mapping[str, list[str]]:
    """Return the names of the queue's Redis keys, grouped by kind."""
    names = defaultdict(list)
    for key in await redis.keys(f"{PREFIX}*"):
        kind, _, name = key.removeprefix(PREFIX).partition(":")
        names[kind].append(name)
    return names


async def counted(redis: Redis, tenants: Iterable[str]) -> dict[str, int]:
    """Return the bytes that each tenant's quota counts."""
    return {tenant: int(await redis.get(f"{PREFIX}stored:{tenant}")) for tenant in tenants}


async def stored_sizes(
    redis: Redis, names: Mapping[str, list[str]], store: Store
) -> dict[str, int]:
    """Return the bytes of each tenant's files in the store: files of jobs, batches and adapters."""
    sizes: Counter[str] = Counter()
    trash = tuple(await redis.smembers(f"{PREFIX}trash"))

    async def below(*folders: str) -> int:
        keys = [key for folder in folders for key in await store.below(folder)]
        return sum([await _size(store, key) for key in keys if not key.startswith(trash)])

    for job in names["job"]:
        inputs, outputs, snapshots = job_folders(job)
        counted_of = {"succeeded": (outputs, snapshots), "paused": (outputs, snapshots)}
        counted_of |= {"queued": (snapshots,), "running": (snapshots,)}  # to resume from
        state = str(await redis.hget(f"{PREFIX}job:{job}", "state"))
        sizes[await _owner(redis, f"job:{job}")] += await below(inputs, *counted_of.get(state, ()))
    for file in names["file"]:
        sizes[await _owner(redis, f"file:{file}")] += await below(f"inputs/{file}/")
    for batch in names["batch"]:
        if await redis.zscore(f"{PREFIX}openbatches", batch) is not None:
            owner = await _owner(redis, f"batch:{batch}")
            sizes[owner] += await below(f"batches/{batch}/")
    for tenant in names["loras"]:
        sizes[tenant] += await below(f"loras/{tenant}/", f"loras/previews/{tenant}/")
    return {tenant: size for tenant, size in sizes.items() if size}


async def _owner(redis: Redis, name: str) -> str:
    return str(await redis.hget(f"{PREFIX}{name}", "tenant"))


async def _size(store: Store, key: str) -> int:
    try:
        return (await store.stat(key)).bytes
    except NotStored:
        return 0  # concurrently deleted
