"""Records of uploaded LoRA adapters, and locks of their files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from models.spec.lora import Lora
from service.jobs.model.errors import LoraBusy
from service.jobs.redis import keys
from service.jobs.scripts.client import QueueClient, new_call
from service.jobs.scripts.script import TEXT, Script
from service.settings.tenants import TenantSettings

LOCK_S = 900.0
"""Lifetime of a lock whose holder has crashed. It exceeds `WORK_S`, so a live holder never loses
it."""
WORK_S = 600.0
"""Maximum time for which a holder keeps a lock."""
WAIT_S = 2.0
"""Maximum wait for a lock."""
RETRY_S = 0.1


class LoraOutcome(NamedTuple):
    """Outcome of recording an adapter."""

    outcome: Literal["recorded", "taken", "full", "quota"]
    """`taken`: another adapter has the name; `full`: the tenant has as many adapters as it may
    have; `quota`: the file exceeds the quota of stored bytes."""
    existing: Lora | None
    """Existing adapter with the name, if any."""


@dataclass(frozen=True)
class RecordLora(Script[LoraOutcome]):
    """Script call that records an adapter whose file is stored."""

    tenant: str
    lora: str
    """Name of the adapter."""
    digest: str
    bytes: int
    preview: str
    """Key of its preview image; empty: none."""
    preview_bytes: int
    max_loras: int
    stored_bytes: int | None
    record: str = field(metadata=TEXT)
    """Record of the adapter, as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> LoraOutcome:
        """Return the outcome of recording an adapter, and its record."""
        outcome, *record = answer
        return LoraOutcome(outcome, Lora.model_validate_json(record[0]) if record else None)


class RemovalOutcome(NamedTuple):
    """Outcome of removing an adapter's record."""

    is_shared: bool
    """True if another record of the tenant has the same file."""
    preview_bytes: int
    """Size of its preview image that was subtracted from the stored bytes."""


@dataclass(frozen=True)
class RemoveLora(Script[RemovalOutcome]):
    """Script call that removes an adapter's record."""

    tenant: str
    lora: str
    """Name of the adapter."""
    digest: str
    preview: str
    """Key of its preview image; empty: none."""
    record: str = field(metadata=TEXT)
    """Record of the adapter, as JSON; a different record with this name is kept."""

    @staticmethod
    def parse(answer: Sequence[int]) -> RemovalOutcome:
        """Return whether the adapter's file is shared, and the size of its preview image."""
        is_shared, preview_bytes = answer
        return RemovalOutcome(bool(is_shared), preview_bytes)


class LoraRecords(QueueClient):
    """Part of a `Queue` that front ends use for adapters."""

    async def loras(self, tenant: str) -> dict[str, Lora]:
        """Return a tenant's adapters by name."""
        records = cast(dict[str, str], await self._redis.hgetall(keys.loras(tenant)))
        return {name: Lora.model_validate_json(text) for name, text in records.items()}

    async def record_lora(
        self, tenant: str, lora: Lora, limits: TenantSettings, preview_bytes: int = 0
    ) -> LoraOutcome:
        """Record an adapter whose file and preview image are stored.

        Raises: QuotaExceeded: they exceed the tenant's quota of stored bytes.
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
        recorded = await self.run_confirmed(record)
        if recorded.outcome == "quota":
            raise await self.storage_quota_exceeded(tenant, limits)
        return recorded

    async def remove_lora(self, tenant: str, lora: Lora) -> RemovalOutcome:
        """Remove an adapter's record, and subtract its files from the tenant's stored bytes."""
        return await self.run(
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
        """Lock the adapter file with this digest while it is stored or deleted.

        Raises:
            LoraBusy: another call holds the lock.
            TimeoutError: the body took longer than `WORK_S`.
        """
        name, call = keys.lora_lock(tenant, digest), new_call()
        await self._lock(name, call)
        try:
            async with asyncio.timeout(WORK_S):
                yield
        finally:
            await self._redis.delete(name)

    async def _lock(self, name: str, call: str) -> None:
        """Acquire the lock of an adapter file within `WAIT_S`. Raises: LoraBusy."""
        until = asyncio.get_running_loop().time() + WAIT_S
        while not await self._redis.set(name, call, nx=True, px=round(LOCK_S * 1000)):
            if await self._redis.get(name) == call:  # the answer to an earlier attempt was lost
                return
            if asyncio.get_running_loop().time() > until:
                raise LoraBusy
            await asyncio.sleep(RETRY_S)
