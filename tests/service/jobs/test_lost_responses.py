"""Idempotence of scripts: a scenario over a network that loses each first response equals the
undisturbed one."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from models.spec.lora import Lora
from models.spec.model_spec import ModelSpec
from service.jobs.batches import (
    CancelBatch,
    ForgetBatches,
    KeepBatch,
    RecordLine,
    ReleaseBatch,
    RemoveBatch,
    RemoveFile,
)
from service.jobs.ledger_files import ReadTotals, TrimLedger
from service.jobs.model.batch import Batch, BatchState, StoredFile
from service.jobs.model.job import FieldWarning, Job
from service.jobs.model.preemption import FullPool, Preemptible
from service.jobs.producer import Deposit
from service.jobs.queue import ClaimUsage, Depth, Queue
from service.jobs.redis.keys import LEDGER
from service.jobs.scheduling.cost_model import CostKey, CostRow
from service.jobs.scripts import composition
from service.settings.tenants import TenantSettings
from service.settings.usage import UsageSettings
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, a_snapshot, an_output
from tests.service.jobs.flaky import flaky
from tests.service.jobs.model.test_metrics import counted

FILES = {path.stem for path in Path(composition.__file__).parent.glob("*.lua")}
NAMES = FILES - composition.PREPENDED
LIMITS = TenantSettings(max_queued=100, device_seconds_per_hour=1000)
COSTS = CostRow(step_s=0.5, encode_s=0.1, decode_s=0.2)
NO_LEASE_S = 0.0
ONE_LORA = TenantSettings(max_loras=1)
"""Lease of a batch until it is renewed: taken twice, it is the same batch."""
TIMES = {"id": "", "created_at": 0.0, "started_at": None, "finished_at": None, "outputs": []}


def counts(depths: dict[str, Depth]) -> dict[str, tuple[int, int]]:
    return {model: (depth.queued, depth.running) for model, depth in depths.items()}


async def life(queue: Queue, hasty: Queue, spec: ModelSpec) -> list[object]:
    """Call every script; return all responses and final states, without ids and times."""
    jobs = [
        (await queue.put(a_job(metadata={"n": str(i)}), idempotency_key=f"key {i}", limits=LIMITS))
        for i in range(8)
    ]
    ids = {job.id: job.metadata["n"] for job, _ in jobs}
    await queue.run(Deposit(jobs[0][0].id))
    await queue.register("pool", spec, ready=True)
    responses: list[object] = [new for _, new in jobs]
    responses.append((await queue.put(a_job(), idempotency_key="key 3"))[1])
    first, second, third, fourth, fifth = await queue.claim("pool", MODEL, 5)
    await queue.measured(MODEL, {CostKey("96x96", "layout", 1): COSTS})
    responses += [(await queue.costs(MODEL)).predict("96x96", 4, 1)]
    look = await queue.queue_snapshot(MODEL)
    responses += [look.tenants, look.idle, look.running, look.coverage]
    responses += [await queue.progress(first, 3, 28, "data:,x"), await queue.progress(first, 4, 28)]
    responses += [await queue.snapshot(first, [a_snapshot(first, step=n)]) for n in (3, 4)]
    responses += [await queue.warn(first, [FieldWarning(field="eta", message="has no effect")])]
    responses += [await queue.finish(first, [an_output(first.job)], USAGE)]
    responses += [await queue.spent(first, ClaimUsage(USAGE.device_seconds + 1, 0.5))]
    responses += [await queue.fail(second, FAILURE), await queue.fail(third, FAILURE, retry=True)]
    held = [Preemptible(fourth.job.id, fourth.fence, left_s=60, image_count=1)]
    full = FullPool("pool", MODEL, slots=5, free=0, soonest_s=60, held=held)
    responses += [await queue.preempt(full, ratio=4, room_s=60)]
    responses += [
        await queue.release(fourth, preempted=True),
        await queue.renew([first, fifth]) == [first],
    ]
    responses += [(await queue.cancel(fifth.job.id)).state, await queue.renew([fifth]) == [fifth]]
    responses += [await queue.switch_model(jobs[6][0], spec.model_copy(update={"name": "other"}))]
    responses += [await queue.switch_model(first.job, spec)]
    responses += [(await queue.delete(jobs[7][0].id)).state]
    (sixth,) = await queue.claim("pool", MODEL, 1)
    responses += [await queue.take_back(sixth.job.id), await queue.take_back(sixth.job.id)]
    (lost,) = await hasty.claim("dead", MODEL, 1)
    responses += [ids[lost.job.id]]
    await queue.reap()
    responses += [await queue.get(job) and plain(await queue.get(job)) for job in ids]
    responses += [plain(job) for job in await queue.list(limit=100)]
    responses += [[(e.id, e.name, e.data) async for e in queue.events(first.job.id)]]
    responses += [await queue.models(), counts(await queue.depths())]
    standing = await queue.quota_usage("default", LIMITS)
    responses += [standing.queued, standing.device_seconds]
    await queue.unregister("pool", spec.name)
    responses += [await queue.models()]
    responses += await announce(queue)
    responses += await adapt(queue)
    responses += await batch(queue, hasty)
    responses += await account(queue)
    files = sorted(await hasty.reap())
    responses += [
        sorted(file.replace(job, n) for job, n in ids.items() for file in files if job in file)
    ]
    responses += [counted(queue, hasty)]
    return responses


async def announce(queue: Queue) -> list[object]:
    """Announce an ended job with a webhook, which fails three times."""
    job, _ = await queue.put(a_job(request={"webhook": {}}))
    await queue.cancel(job.id)
    responses: list[object] = []
    for failed in range(3):
        (announcement,) = await queue.announced(lease_s=60, most=5, each=5, busy={"other": 1})
        responses += [
            announcement.failed,
            await queue.announced(lease_s=60, most=5, each=5, busy={}),
        ]
        await queue.announce_later(replace(announcement, failed=failed + 1), 0)
    await queue.announce_no_more(announcement)
    return [*responses, await queue.announced(lease_s=60, most=5, each=5, busy={})]


async def adapt(queue: Queue) -> list[object]:
    """Add an adapter, replace it under the same name, exceed the limit, and remove it."""
    ink = Lora(name="ink", model=MODEL, digest="01", origin="upload")
    others = [ink.model_copy(update=item) for item in ({"digest": "02"}, {"name": "oil"})]
    responses: list[object] = []
    async with queue.lora_lock("acme", ink.digest):
        responses += [await queue.record_lora("acme", item, ONE_LORA) for item in (ink, *others)]
        responses += [await queue.loras("acme"), await queue.remove_lora("acme", others[0])]
    responses += [await queue.remove_lora("acme", ink), await queue.loras("acme")]
    return responses


async def batch(queue: Queue, hasty: Queue) -> list[object]:
    """Upload a file; run one batch under two holders and forget it; cancel another."""
    file = StoredFile(
        id="file-1",
        tenant="acme",
        filename="a.jsonl",
        purpose="batch",
        bytes=1,
        created_at=0,
        expires_at=2**40,
    )
    responses: list[object] = [await queue.record_file(file, max_files=1)]
    responses += [await queue.record_file(file.model_copy(update={"id": "file-2"}), max_files=1)]
    fields = {"tenant": "acme", "endpoint": "/v1/generate", "completion_window": "24h"}
    first, second = (Batch(id=f"batch_{n}", input_file_id=file.id, **fields) for n in (1, 2))
    responses += [await queue.record_batch(first, window_s=60, max_open=1, max_files=4)]
    responses += [await queue.record_batch(second, window_s=60, max_open=1, max_files=4)]
    for holder in ("first", "second"):
        claimed = await queue.take_batch(holder, NO_LEASE_S)
        responses += [
            claimed and claimed.id,
            await queue.run(KeepBatch(first.id, holder, lease_s=60)),
        ]
        responses += [await queue.move_batch(first.id, holder, BatchState.IN_PROGRESS, total=2)]
        for outcome in ("job_1", "completed", "failed"):
            responses += [await queue.run(RecordLine(first.id, holder, 0, outcome))]
        responses += [await queue.lines(first.id)]
        await queue.run(ReleaseBatch(first.id, holder))
    for state in (BatchState.FINALIZING, BatchState.COMPLETED):
        responses += [await queue.move_batch(first.id, "second", state)]
    done = await queue.batch(first.id, "acme")
    responses += [done and (done.state, done.total, done.completed, done.failed)]
    responses += [await queue.record_batch(second, window_s=60, max_open=1, max_files=4)]
    responses += [await queue.run(CancelBatch(second.id, "acme"))]
    responses += [await queue.run(RemoveBatch(second.id, "acme"))]
    claimed = await queue.take_batch("third", NO_LEASE_S)
    responses += [
        claimed and claimed.state,
        await queue.move_batch(second.id, "third", BatchState.CANCELLED),
    ]
    responses += [await queue.batches("acme"), len(await queue.files("acme"))]
    responses += [await queue.run(RemoveBatch(second.id, "acme")), await queue.batches("acme")]
    await queue.run(RemoveFile(file.id, "acme"))  # the repeat finds none
    await hasty.run(ForgetBatches(0))
    return [*responses, await queue.batches("acme"), await queue.files("acme")]


async def account(queue: Queue) -> list[object]:
    """Read the ledger's totals, and write one file of its old records."""
    totals = await queue.run(ReadTotals())
    await queue.redis.delete(LEDGER)
    await queue.redis.xadd(LEDGER, {"record": "{}"}, "1-0")
    usage = UsageSettings()
    file = await queue.take_ledger("me", 60, usage)
    assert file is not None
    responses = [dict(totals.sums), totals.pending, file, await queue.ledger_lines(file)]
    await queue.run(TrimLedger(*file))  # the repeat finds none
    return [*responses, await queue.take_ledger("me", 60, usage)]


def plain(job: Job) -> dict[str, object]:
    deaths = [(death.pool, death.step) for death in job.deaths]
    return job.model_dump() | TIMES | {"deaths": deaths}


async def test_job_lifecycle_with_lost_responses(
    queue: Queue,
    hasty: Queue,
    connect: Connect,
    redis_url: str,
    empty_redis: Redis,
    tmp_path: Path,
    a_spec: ModelSpec,
) -> None:
    expected = await life(queue, hasty, a_spec)
    await empty_redis.flushall()
    async with flaky(redis_url, tmp_path) as (url, relay):
        shaky = await connect(url)
        shaky_hasty = await connect(url, lease_s=1e-6, retention_s=1e-6)
        assert await life(shaky, shaky_hasty, a_spec) == expected
        await shaky.close()
        await shaky_hasty.close()
    digests = {name: hashlib.sha1(composition.source(name).encode()).hexdigest() for name in NAMES}
    assert {name for name, digest in digests.items() if digest.encode() in relay.lost} == NAMES


async def test_lost_reap_response_is_counted_by_the_next_one(
    hasty: Queue, connect: Connect, redis_url: str, tmp_path: Path
) -> None:
    await hasty.put(a_job())
    await hasty.claim("dead", MODEL, 1)
    async with flaky(redis_url, tmp_path) as (url, relay):
        shaky = await connect(url, lease_s=1e-6)
        relay.is_deaf = True
        with pytest.raises(ConnectionError):
            await shaky.reap()
        relay.is_deaf = False
        await shaky.reap()
        assert counted(shaky)["reclaimed", MODEL] == 1
        await shaky.close()


async def test_lost_claim_response_is_returned_by_the_next_one(
    queue: Queue, connect: Connect, redis_url: str, tmp_path: Path
) -> None:
    """Redis was unreachable after the claim, for longer than clients retry."""
    first, _ = await queue.put(a_job())
    async with flaky(redis_url, tmp_path) as (url, relay):
        shaky = await connect(url)
        await shaky.claim("pool", "another model", 1)
        relay.is_deaf = True
        with pytest.raises(ConnectionError):
            await shaky.claim("pool", MODEL, 1)
        relay.is_deaf = False
        second, _ = await queue.put(a_job())
        claims = [await shaky.claim("pool", MODEL, 1) for _ in range(2)]
        await shaky.close()
    assert [[claim.job.id for claim in batch] for batch in claims] == [[first.id], [second.id]]
    assert claims[0][0].job.attempts == 1
