"""Every script is safe to be sent twice: a life over a network that loses each first answer is the
same life."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from models.spec.lora import Lora
from models.spec.model_spec import ModelSpec
from service.jobs.model.batch import Batch, BatchState, StoredFile
from service.jobs.model.job import Job, Warned
from service.jobs.model.preemption import FullPool, Held
from service.jobs.queue import Depth, Queue, Spent
from service.jobs.redis.keys import LEDGER
from service.jobs.scheduling.cost_model import CostKey, CostRow
from service.jobs.scripts import runner
from service.settings.tenants import TenantSettings
from service.settings.usage import UsageSettings
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, a_snapshot, an_output
from tests.service.jobs.flaky import flaky
from tests.service.jobs.model.test_metrics import counted

FILES = {path.stem for path in Path(runner.__file__).parent.glob("*.lua")}
NAMES = FILES - runner.PREPENDED
LIMITS = TenantSettings(max_queued=100, device_seconds_per_hour=1000)
COSTS = CostRow(step_s=0.5, encode_s=0.1, decode_s=0.2)
NO_LEASE_S = 0.0
ONE_LORA = TenantSettings(max_loras=1)
"""Lease of a batch until it is renewed: one that is taken twice is the same one."""
TIMES = {"id": "", "created_at": 0.0, "started_at": None, "finished_at": None, "outputs": []}


def counts(depths: dict[str, Depth]) -> dict[str, tuple[int, int]]:
    return {model: (depth.queued, depth.running) for model, depth in depths.items()}


async def life(queue: Queue, hasty: Queue, spec: ModelSpec) -> list[object]:
    """Uses every script; what it answers and leaves, without ids and times."""
    jobs = [
        (await queue.put(a_job(metadata={"n": str(i)}), idempotency_key=f"key {i}", limits=LIMITS))
        for i in range(8)
    ]
    ids = {job.id: job.metadata["n"] for job, _ in jobs}
    await queue.deposit(jobs[0][0].id)
    await queue.register("pool", spec, ready=True)
    said: list[object] = [new for _, new in jobs]
    said.append((await queue.put(a_job(), idempotency_key="key 3"))[1])
    one, two, three, four, five = await queue.claim("pool", MODEL, 5)
    await queue.measured(MODEL, {CostKey("96x96", "layout", 1): COSTS})
    said += [(await queue.costs(MODEL)).predict("96x96", 4, 1)]
    look = await queue.queue_snapshot(MODEL)
    said += [look.tenants, look.idle, look.running, look.seen]
    said += [await queue.progress(one, 3, 28, "data:,x"), await queue.progress(one, 4, 28)]
    said += [await queue.snapshot(one, [a_snapshot(one, step=n)]) for n in (3, 4)]
    said += [await queue.warn(one, [Warned(field="eta", message="has no effect")])]
    said += [await queue.finish(one, [an_output(one.job)], USAGE)]
    said += [await queue.spent(one, Spent(USAGE.device_seconds + 1, 0.5))]
    said += [await queue.fail(two, FAILURE), await queue.fail(three, FAILURE, retry=True)]
    held = [Held(four.job.id, four.fence, left_s=60, pictures=1)]
    full = FullPool("pool", MODEL, slots=5, free=0, soonest_s=60, held=held)
    said += [await queue.preempt(full, ratio=4, room_s=60)]
    said += [await queue.release(four, preempted=True), await queue.renew([one, five]) == [one]]
    said += [(await queue.cancel(five.job.id)).state, await queue.renew([five]) == [five]]
    said += [await queue.switch_model(jobs[6][0], spec.model_copy(update={"name": "other"}))]
    said += [await queue.switch_model(one.job, spec)]
    said += [(await queue.delete(jobs[7][0].id)).state]
    (six,) = await queue.claim("pool", MODEL, 1)
    said += [await queue.take_back(six.job.id), await queue.take_back(six.job.id)]
    (lost,) = await hasty.claim("dead", MODEL, 1)
    said += [ids[lost.job.id]]
    await queue.reap()
    said += [await queue.get(job) and plain(await queue.get(job)) for job in ids]
    said += [plain(job) for job in await queue.list(limit=100)]
    said += [[(e.id, e.name, e.data) async for e in queue.events(one.job.id)]]
    said += [await queue.models(), counts(await queue.depths())]
    standing = await queue.standing("default", LIMITS)
    said += [standing.queued, standing.device_seconds]
    await queue.unregister("pool", spec.name)
    said += [await queue.models()]
    said += await announce(queue)
    said += await adapt(queue)
    said += await batch(queue, hasty)
    said += await account(queue)
    files = sorted(await hasty.reap())
    said += [
        sorted(file.replace(job, n) for job, n in ids.items() for file in files if job in file)
    ]
    said += [counted(queue, hasty)]
    return said


async def announce(queue: Queue) -> list[object]:
    """An end that somebody wants to be told of, who has to be asked three times."""
    job, _ = await queue.put(a_job(request={"webhook": {}}))
    await queue.cancel(job.id)
    said: list[object] = []
    for failed in range(3):
        (one,) = await queue.announced(lease_s=60, most=5, each=5, busy={"other": 1})
        said += [one.failed, await queue.announced(lease_s=60, most=5, each=5, busy={})]
        await queue.announce_later(replace(one, failed=failed + 1), 0)
    await queue.announce_no_more(one)
    return [*said, await queue.announced(lease_s=60, most=5, each=5, busy={})]


async def adapt(queue: Queue) -> list[object]:
    """An adapter comes, and another one of its name, and one too many; then it goes."""
    ink = Lora(name="ink", model=MODEL, digest="01", origin="upload")
    others = [ink.model_copy(update=one) for one in ({"digest": "02"}, {"name": "oil"})]
    said: list[object] = []
    async with queue.lora_lock("acme", ink.digest):
        said += [await queue.record_lora("acme", one, ONE_LORA) for one in (ink, *others)]
        said += [await queue.loras("acme"), await queue.remove_lora("acme", others[0])]
    said += [await queue.remove_lora("acme", ink), await queue.loras("acme")]
    return said


async def batch(queue: Queue, hasty: Queue) -> list[object]:
    """A file comes; one batch is taken over, worked off and forgotten, another is cancelled."""
    file = StoredFile(
        id="file-1",
        tenant="acme",
        filename="a.jsonl",
        purpose="batch",
        bytes=1,
        created_at=0,
        expires_at=2**40,
    )
    said: list[object] = [await queue.record_file(file, max_files=1)]
    said += [await queue.record_file(file.model_copy(update={"id": "file-2"}), max_files=1)]
    asked = {"tenant": "acme", "endpoint": "/v1/generate", "completion_window": "24h"}
    one, two = (Batch(id=f"batch_{n}", input_file_id=file.id, **asked) for n in (1, 2))
    said += [await queue.record_batch(one, window_s=60, max_open=1, max_files=4)]
    said += [await queue.record_batch(two, window_s=60, max_open=1, max_files=4)]
    for holder in ("first", "second"):
        taken = await queue.take_batch(holder, NO_LEASE_S)
        said += [taken and taken.id, await queue.keep_batch(one.id, holder, lease_s=60)]
        said += [await queue.move_batch(one.id, holder, BatchState.IN_PROGRESS, total=2)]
        for outcome in ("job_1", "completed", "failed"):
            said += [await queue.record_line(one.id, holder, 0, outcome)]
        said += [await queue.lines(one.id)]
        await queue.release_batch(one.id, holder)
    for state in (BatchState.FINALIZING, BatchState.COMPLETED):
        said += [await queue.move_batch(one.id, "second", state)]
    done = await queue.batch(one.id, "acme")
    said += [done and (done.state, done.total, done.completed, done.failed)]
    said += [await queue.record_batch(two, window_s=60, max_open=1, max_files=4)]
    said += [await queue.cancel_batch(two.id, "acme")]
    taken = await queue.take_batch("third", NO_LEASE_S)
    said += [taken and taken.state, await queue.move_batch(two.id, "third", BatchState.CANCELLED)]
    said += [await queue.batches("acme"), len(await queue.files("acme"))]
    await queue.remove_file(file.id, "acme")  # sent twice, it finds none the second time
    await hasty.forget_batches(0)
    return [*said, await queue.batches("acme"), await queue.files("acme")]


async def account(queue: Queue) -> list[object]:
    """The ledger's sums, and one file of what it has, of an hour that is long over."""
    totals = await queue.totals()
    await queue.redis.delete(LEDGER)
    await queue.redis.xadd(LEDGER, {"record": "{}"}, "1-0")
    usage = UsageSettings()
    file = await queue.take_ledger("me", 60, usage)
    assert file is not None
    said = [dict(totals.sums), totals.pending, file, await queue.ledger_lines(file)]
    await queue.trim_ledger(file)  # sent twice, it finds none the second time
    return [*said, await queue.take_ledger("me", 60, usage)]


def plain(job: Job) -> dict[str, object]:
    deaths = [(death.pool, death.step) for death in job.deaths]
    return job.model_dump() | TIMES | {"deaths": deaths}


async def test_a_life_with_lost_answers_is_the_same(
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
    digests = {name: hashlib.sha1(runner.source(name).encode()).hexdigest() for name in NAMES}
    assert {name for name, digest in digests.items() if digest.encode() in relay.lost} == NAMES


async def test_what_a_reap_without_an_answer_took_is_counted_by_the_next_one(
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


async def test_a_claim_without_an_answer_is_what_the_next_one_gives(
    queue: Queue, connect: Connect, redis_url: str, tmp_path: Path
) -> None:
    """Redis went away when it had carried it out, for longer than anybody tries."""
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
    assert [[one.job.id for one in taken] for taken in claims] == [[first.id], [second.id]]
    assert claims[0][0].job.attempts == 1
