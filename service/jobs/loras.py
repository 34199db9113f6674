"""Records of uploaded adapters: who has which, and who works at their files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

from models.spec.lora import Lora
from service.jobs.model.errors import LoraBusy
from service.jobs.redis import keys
from service.jobs.scripts.client import Calls, new_call
from service.jobs.scripts.loras import LoraOutcome, LoraRemoved, RecordLora, RemoveLora
from service.settings.tenants import TenantSettings

LOCK_S = 900.0
"""Lifetime of a lock whose holder has died; whoever holds one is done by then."""
WORK_S = 600.0
"""Time that a holder has for its work."""
WAIT_S = 2.0
"""Time for which a lock is waited for."""
RETRY_S = 0.1


class LoraRecords(Calls):
    """Part of a `Queue` that front ends use for adapters."""

    async def loras(self, tenant: str) -> dict[str, Lora]:
        """Return a tenant's adapters by name."""
        found = cast(dict[str, str], await self._redis.hgetall(keys.loras(tenant)))
        return {name: Lora.model_validate_json(text) for name, text in found.items()}

    async def record_lora(
        self, tenant: str, lora: Lora, limits: TenantSettings, preview_bytes: int = 0
    ) -> LoraOutcome:
        """Record an adapter whose file is stored, and its image of so many bytes.

        Raises: QuotaExceeded: the tenant may not have so many bytes.
        """
        record = RecordLora(
            tenant=tenant,
            lora=lora.name,
            digest=lora.digest,
            bytes=lora.bytes,
            preview=lora.preview or "",
            preview_bytes=preview_bytes,
            max_loras=limits.max_loras,
            stored_bytes=limits.stored_bytes,
            record=lora.model_dump_json(),
        )
        recorded = await self._accept(record)
        if recorded.outcome == "quota":
            raise await self.no_room(tenant, limits)
        return recorded

    async def remove_lora(self, tenant: str, lora: Lora) -> LoraRemoved:
        """Remove the record, and count its files no more."""
        return await self._run(
            RemoveLora(
                tenant=tenant,
                lora=lora.name,
                digest=lora.digest,
                preview=lora.preview or "",
                record=lora.model_dump_json(),
            )
        )

    @contextlib.asynccontextmanager
    async def lora_lock(self, tenant: str, digest: str) -> AsyncIterator[None]:
        """Hold the file of that digest: it is stored or deleted by one front end at a time.

        Raises:
            LoraBusy: somebody else holds it.
            TimeoutError: the work inside took too long.
        """
        name, call = keys.lora_lock(tenant, digest), new_call()
        await self._lock(name, call)
        try:
            async with asyncio.timeout(WORK_S):
                yield
        finally:
            await self._redis.delete(name)

    async def _lock(self, name: str, call: str) -> None:
        """Raises: LoraBusy."""
        until = asyncio.get_running_loop().time() + WAIT_S
        while not await self._redis.set(name, call, nx=True, px=round(LOCK_S * 1000)):
            if await self._redis.get(name) == call:  # the answer to an earlier try got lost
                return
            if asyncio.get_running_loop().time() > until:
                raise LoraBusy
            await asyncio.sleep(RETRY_S)
