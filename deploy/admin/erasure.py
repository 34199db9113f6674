"""`atelier tenants erase`: delete a tenant with everything that it owns in Redis and the store.

Records of the ledger and of the audit log remain, and backups until they are deleted. Each step can
be repeated, so a command that failed is run again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import quote

from redis.asyncio import Redis

from deploy.admin.audited_actions import Act, at_redis, recorded
from service.auth.api_keys import ApiKeys, Role
from service.jobs.batches import CancelBatch, RemoveBatch, RemoveFile
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store, file_key, job_folders
from service.jobs.tenants import TenantRecords
from service.settings.section import ConfigError
from service.settings.settings import Settings
from service.settings.tenants import check_tenant
from service.webhooks.secrets import WebhookSecrets

PAGE = 100
"""Number of jobs deleted together."""
LOOKS, LOOK_EVERY_S = 120, 0.5
"""Number and period of polls of a canceled batch, which a front end ends."""


def erase(settings: Settings, tenant: str, reason: str) -> None:
    """Erase a tenant; print how much was deleted, by kind.

    Raises:
        ValueError: the tenant's name is invalid.
        ConfigError: Redis or the store is unreachable, or a batch does not end.
    """
    check_tenant(tenant)

    async def act(redis: Redis) -> Counter[str]:
        async with recorded(redis, Act("erase tenant", tenant, reason)) as record:
            deleted = await Erasure(redis, settings, tenant).run()
            record.details.update({kind: str(count) for kind, count in deleted.items()})
        return deleted

    for kind, count in at_redis(settings, act).items():
        print(f"{kind}: {count}")


class Erasure:
    """Deletion of one tenant's data, in an order in which nothing new appears."""

    def __init__(self, redis: Redis, settings: Settings, tenant: str) -> None:
        self._redis = redis
        self._queue = Queue(redis, settings.queue)
        self._store = Store(settings.store_url)
        self._tenant = tenant

    async def run(self) -> Counter[str]:
        """Delete all data of the tenant; return the counts by kind. Raises: ConfigError."""
        try:
            return Counter(
                {
                    "keys": await self._keys(),
                    "batches": await self._batches(),
                    "jobs": await self._jobs(),
                    "files": await self._files(),
                    "adapters": await self._adapters(),
                    "webhook secrets": await self._webhooks(),
                    "records": await self._record(),
                }
            )
        except StoreError as error:
            raise ConfigError(f"store.url: {error}; run the command again") from error

    async def _keys(self) -> int:
        """Revoke the tenant's API keys first, so that no new request is accepted."""
        api_keys = ApiKeys(self._redis)
        owned = [
            key
            for key in await api_keys.all()
            if key.tenant == self._tenant and key.role is Role.TENANT
        ]
        return sum([await api_keys.revoke(key.id) for key in owned])

    async def _batches(self) -> int:
        """Cancel batches, and remove them once their front end has ended them."""
        batches = await self._queue.batches(self._tenant)
        for batch in batches:
            await self._queue.run(CancelBatch(batch, self._tenant))
        for batch in batches:
            await self._remove(batch)
        await self._store.delete([f"batches/{batch}/" for batch in batches])
        return len(batches)

    async def _remove(self, batch: str) -> None:
        """Remove a batch once it has ended. Raises: ConfigError."""
        for _ in range(LOOKS):
            if await self._queue.run(RemoveBatch(batch, self._tenant)):
                return
            await asyncio.sleep(LOOK_EVERY_S)
        raise ConfigError(
            f"the canceled batch {batch} has not ended: run the command again while a front end"
            " runs"
        )

    async def _jobs(self) -> int:
        count = 0
        while page := await self._queue.list(tenant=self._tenant, limit=PAGE):
            for job in page:
                await self._queue.delete(job.id)
            await self._store.delete([folder for job in page for folder in job_folders(job.id)])
            count += len(page)
        return count

    async def _files(self) -> int:
        files = await self._queue.files(self._tenant)
        for file in files:
            await self._queue.run(RemoveFile(file.id, self._tenant))
        await self._store.delete([file_key(file.id) for file in files])
        return len(files)

    async def _adapters(self) -> int:
        """Delete files before records, so that a failure leaves a record to find them by."""
        folder = quote(self._tenant, safe="")
        await self._store.delete([f"loras/{folder}/", f"loras/previews/{folder}/"])
        adapters = (await self._queue.loras(self._tenant)).values()
        for adapter in adapters:
            async with self._queue.lora_lock(self._tenant, adapter.digest):
                await self._queue.remove_lora(self._tenant, adapter)
        return len(adapters)

    async def _webhooks(self) -> int:
        secrets = WebhookSecrets(self._redis)
        return sum([await secrets.revoke(secret.id) for secret in await secrets.of(self._tenant)])

    async def _record(self) -> int:
        """Remove the tenant's settings, and its keys that have an expiry time."""
        records = TenantRecords(self._redis)
        is_recorded = self._tenant in await records.all()
        if is_recorded:
            await records.change(
                lambda all_: {name: record for name, record in all_.items() if name != self._tenant}
            )
        for pattern in keys.of_tenant(self._tenant):
            async for name in self._redis.scan_iter(match=pattern, count=1000):
                await self._redis.delete(name)
        return int(is_recorded)
