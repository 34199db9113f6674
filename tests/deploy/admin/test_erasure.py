"""`atelier tenants erase` deletes everything of one tenant and nothing of another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import atelier
from service.auth.api_keys import ApiKeys
from service.jobs import backup
from service.jobs.model.batch import Batch, BatchState, StoredFile
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store, file_key, lora_key, preview_key
from service.jobs.tenants import TenantRecords
from service.settings.tenants import TenantSettings
from service.webhooks.secrets import WebhookSecrets
from tests.service.adapters import INK
from tests.service.eventually import eventually
from tests.service.jobs.examples import USAGE, a_job, an_output
from tests.service.standin import MODEL

TENANTS = ("acme", "bolt")
ERASED = {
    "keys": 2, "batches": 2, "jobs": 3, "files": 1, "adapters": 1, "webhook secrets": 1,
    "records": 1,
}  # fmt: skip


STAYING = (
    *(f"{keys.PREFIX}{name}" for name in ("call:", "idle:", "left:", "trash")),
    keys.LEDGER,
    keys.AUDIT,
)
"""Keys that may name an erased tenant: records, and what is removed within an hour."""


async def own(queue: Queue, store: Store, tenant: str) -> None:
    """Create at least one of every kind of record and file for a tenant."""
    redis, limits = queue.redis, TenantSettings(max_queued=9)
    await TenantRecords(redis).change(lambda records: records | {tenant: limits})
    for _ in range(ERASED["keys"]):
        await ApiKeys(redis).create(tenant)
    await WebhookSecrets(redis).create(tenant)
    preview = preview_key(tenant, "1")
    adapter = INK.model_copy(update={"preview": preview})
    await queue.record_lora(tenant, adapter, limits)
    for number in range(ERASED["jobs"]):
        request = {"prompt": f"a cat of {tenant}"}
        job = a_job(model=MODEL, tenant=tenant, request=request)
        await queue.put(job, idempotency_key=f"key {number}", digest="d", limits=limits)
    done, _ = await queue.claim("pool", MODEL, 2)
    await queue.finish(done, [an_output(done.job)], USAGE)
    names = [an_output(done.job).key, preview, lora_key(tenant, INK.digest)]
    file = StoredFile(
        id=f"file-{tenant}", tenant=tenant, filename="a.jsonl", purpose="batch", bytes=1,
        created_at=0, expires_at=2**40,
    )  # fmt: skip
    await queue.record_file(file)
    for name in (*names, file_key(file.id)):
        await store.put(name, b"bytes", "text/plain")
    batch = await a_batch(queue, tenant, "done")
    await queue.take_batch("front", lease_s=60)
    await queue.move_batch(batch.id, "front", BatchState.COMPLETED)


async def a_batch(queue: Queue, tenant: str, name: str) -> Batch:
    """Submit a batch of the tenant's file."""
    fields: dict[str, Any] = {"endpoint": "/v1/generate", "completion_window": "24h"}
    file = f"file-{tenant}"
    batch = Batch(id=f"batch_{tenant}_{name}", tenant=tenant, input_file_id=file, **fields)
    await queue.record_batch(batch, window_s=3600, max_open=9, max_files=9)
    return batch


async def end_canceled(queue: Queue) -> None:
    """End the erased tenant's batch, as a front end does."""

    async def is_canceled() -> bool:
        batch = await queue.batch("batch_acme_open")
        return batch is not None and batch.state is BatchState.CANCELLING

    await eventually(is_canceled)
    while taken := await queue.take_batch("front", lease_s=60):
        if taken.state == BatchState.CANCELLING:
            await queue.move_batch(taken.id, "front", BatchState.CANCELLED)


async def naming(redis: Redis, tenant: str) -> Mapping[bytes, Any]:
    """Keys in whose name or value a tenant occurs, with what they contain."""
    await redis.config_set("rdbcompression", "no")  # a compressed value may hide the name
    commands = {command[1]: command for command in await backup.read(redis)}
    text = tenant.encode()
    return {name: value for name, value in commands.items() if text in name or text in value[3]}


async def test_everything_of_one_tenant_is_gone_and_the_rest_is_intact(
    queue: Queue, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "outputs"))
    for tenant in TENANTS:
        await own(queue, store, tenant)
    for tenant in TENANTS:
        await a_batch(queue, tenant, "open")
    before = await naming(queue.redis, "bolt")
    files = {name for name in await store.below("")}
    options = ("--redis", redis_url, "--state", str(tmp_path))
    command = ["tenants", "erase", "acme", *options]
    assert await asyncio.to_thread(atelier.main, command) == atelier.EXIT_USAGE
    assert await naming(queue.redis, "bolt") == before
    erasing = asyncio.to_thread(atelier.main, [*command, "--yes", "--reason", "asked"])
    code, _ = await asyncio.gather(erasing, end_canceled(queue))
    captured = capsys.readouterr()
    printed = dict(line.split(": ") for line in captured.out.splitlines())
    assert code == 0, captured.err
    assert printed == {kind: str(count) for kind, count in ERASED.items()}
    for name in await naming(queue.redis, "acme"):
        assert name.decode().startswith(STAYING), name
    assert {*before} - {*await naming(queue.redis, "bolt")} == set()
    remaining = {name for name in await store.below("")}
    assert remaining == {name for name in files if await belongs(queue, name)}
    assert await asyncio.to_thread(atelier.main, [*command, "--yes"]) == 0
    again = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert {*again.values()} == {"0"}, "it can be repeated"


async def belongs(queue: Queue, name: str) -> bool:
    """Whether a stored file is the other tenant's."""
    job_ids = {job.id for job in await queue.list(tenant="bolt", limit=9)}
    return "bolt" in name or any(job_id in name for job_id in job_ids)
