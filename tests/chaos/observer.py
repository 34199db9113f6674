"""Inspects a system from outside: its API, Redis and store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from redis.asyncio import Redis

from deploy.admin.usage import Period, records
from service.client import parse_events
from service.jobs.model import serialization
from service.jobs.model.ledger import LedgerRecord
from service.jobs.redis import keys
from service.jobs.storage.object_store import LEDGER, Store
from tests.chaos import schema
from tests.chaos.clients import Client
from tests.chaos.history import JobEvent, JobRecord
from tests.chaos.invariants import ENDS
from tests.chaos.orders import TENANTS
from tests.chaos.system import MODEL_OF

PAGE = 100
JOB = re.compile(re.escape(keys.job("")) + "(.+)")
LIVES = """
local found = {}
for i, name in ipairs(redis.call('KEYS', '*')) do found[i] = {name, redis.call('PTTL', name)} end
return found
"""
"""Read every key with its TTL in one script, so that no key expires in between."""
OWN_FOLDERS = {"inputs", "outputs", "snapshots"}
"""Folders of the store itself."""
AT_ONCE = 8


class Observer:
    """Reader of a system's state through its API, Redis and store. Needs a reachable Redis."""

    def __init__(self, redis: Redis, client: Client, store: Path) -> None:
        self._redis = redis
        self._client = client
        self._store = store
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def unended(self) -> list[str]:
        """Ids of unfinished jobs, read from Redis."""
        job_ids = []
        async for key in self._redis.scan_iter(match=keys.job("*")):
            if await self._redis.hget(key, "state") not in ENDS:
                job_ids.append(JOB.fullmatch(key)[1])
        return job_ids

    async def jobs(self) -> list[JobRecord]:
        """All jobs of all tenants."""
        views = [(tenant, view) for tenant in TENANTS for view in await self._views(tenant)]
        return await asyncio.gather(*(self._job(tenant, view) for tenant, view in views))

    async def _views(self, tenant: str) -> list[dict]:
        result: list[dict] = []
        while True:
            after = f"&after={result[-1]['id']}" if result else ""
            path = f"/v1/jobs?limit={PAGE}{after}"
            page = (await self._client.until_answered("GET", path, tenant)).json()
            result += page["data"]
            if not page["has_more"]:
                return result

    async def _job(self, tenant: str, view: dict) -> JobRecord:
        async with self._turns:
            fields = await self._redis.hgetall(keys.job(view["id"]))
            outputs = serialization.from_hash(fields).outputs
            return JobRecord(
                tenant=tenant,
                view=view,
                events=await self._events(tenant, view),
                fence=int(fields.get("fence", 0)),
                settled=fields.get("settled", ""),
                keys=tuple(output.key for output in outputs),
                digests=tuple([await self._digest(tenant, item) for item in view["outputs"]]),
            )

    async def _events(self, tenant: str, view: dict) -> tuple[JobEvent, ...]:
        """The complete event stream of an ended job."""
        if view["state"] not in ENDS:
            return ()
        path = f"/v1/jobs/{view['id']}/events"
        text = (await self._client.until_answered("GET", path, tenant)).text
        events = parse_events(iter(text.splitlines()))
        return tuple(JobEvent(int(event.id), event.name, event.data) for event in events)

    async def _digest(self, tenant: str, output: dict) -> str:
        data = await self._client.until_answered("GET", output["url"], tenant)
        return hashlib.sha256(data.content).hexdigest()

    async def delete(self, jobs: Sequence[JobRecord]) -> None:
        async def delete_job(job: JobRecord) -> None:
            async with self._turns:
                await self._client.until_answered("DELETE", f"/v1/jobs/{job.id}", job.tenant)

        await asyncio.gather(*(delete_job(job) for job in jobs))

    async def is_stored(self) -> bool:
        """Whether every ledger record is in a file."""
        return not await self._redis.xlen(keys.LEDGER)

    async def ledger(self) -> list[LedgerRecord]:
        """All records in the store."""
        return [record async for record in records(Store(str(self._store)), Period())]

    async def totals(self) -> dict[tuple[str, ...], int]:
        """Sums of the records in Redis."""
        totals_ = await self._redis.hgetall(f"{keys.PREFIX}totals")
        return {tuple(json.loads(name)): int(value) for name, value in totals_.items()}

    async def unknown_keys(self) -> list[str]:
        """Keys that are in no schema."""
        return [key async for key in self._redis.scan_iter() if not schema.rows_of(key)]

    async def left_keys(self) -> list[str]:
        """Keys that should not exist without jobs, and pools that ended."""
        keys_with_ttl = await self._redis.eval(LIVES, 0)
        left = [key for key, ttl_ms in keys_with_ttl if not schema.may_stay(key, ttl_ms / 1000)]
        return sorted(left) + await self._left_pools()

    async def _left_pools(self) -> list[str]:
        """Models with more pools than they have; a pool gets a new name at each start."""
        left = []
        for model, count in Counter(MODEL_OF.values()).items():
            for key in (f"{keys.PREFIX}{kind}:{model}" for kind in ("pools", "layouts")):
                names = await self._redis.hkeys(key)
                left += [f"{key} {names}"] if len(names) > count else []
        return left

    def left_files(self) -> list[str]:
        """Files and folders of the store, except its own three folders and the ledger, which
        stays."""
        paths = {str(path.relative_to(self._store)) for path in self._store.rglob("*")}
        return sorted(name for name in paths - OWN_FOLDERS if name.split("/")[0] != LEDGER)
