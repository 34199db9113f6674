"""Reaper: lapsed leases, expired and forgotten jobs, and no leaked keys or files."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis

from deploy.local.embedded_redis import embedded
from models.spec.model_spec import ModelSpec
from service.jobs.model.job import PRIORITIES, Job, JobState
from service.jobs.model.job_filter import JobFilter
from service.jobs.producer import Deposit
from service.jobs.queue import Queue, WorkerState
from service.jobs.storage.object_store import job_folders
from service.settings.queue import QueueSettings
from tests.service.eventually import eventually
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, a_snapshot, an_output


async def test_lapsed_job_keeps_its_position(queue: Queue, hasty: Queue) -> None:
    first, _ = await queue.put(a_job())
    second, _ = await queue.put(a_job())
    (claim,) = await hasty.claim("dead", MODEL, 1)
    await hasty.progress(claim, 7, 28)
    await queue.reap()
    job = await queue.get(first.id)
    assert (job.state, job.step, job.started_at) == (JobState.QUEUED, 0, None)
    assert not await hasty.finish(claim, [], USAGE)
    again = [claim for _ in range(2) for claim in await queue.claim("alive", MODEL, 2)]
    assert [claim.job.id for claim in again] == [first.id, second.id]
    assert again[0].job.attempts == 2
    assert await queue.finish(again[0], [], USAGE)


async def test_job_that_crashes_workers_fails(hasty: Queue) -> None:
    job, _ = await hasty.put(a_job())
    for pool, step in (("first", 7), ("second", 9)):
        (claim,) = await hasty.claim(pool, MODEL, 1)
        await hasty.progress(claim, step, 28)
        await hasty.reap()
    ended = await hasty.get(job.id)
    assert (ended.state, ended.error.code) == (JobState.FAILED, "poisonous")
    assert [(death.pool, death.step) for death in ended.error.deaths] == [
        ("first", 7),
        ("second", 9),
    ]
    assert ended.created_at <= ended.error.deaths[0].at <= ended.error.deaths[1].at
    assert await hasty.claim("third", MODEL, 1) == []
    *_, last = [event async for event in hasty.events(job.id)]
    assert last.data["error"] == ended.error.model_dump(mode="json")


async def test_drains_and_failures_are_not_crashes(hasty: Queue) -> None:
    job, _ = await hasty.put(a_job())
    for end in (hasty.release, hasty.release, partial(hasty.fail, error=FAILURE, retry=True)):
        (claim,) = await hasty.claim("pool", MODEL, 1)
        await end(claim)
        await hasty.reap()
    assert (await hasty.get(job.id)).deaths == []
    assert (await hasty.get(job.id)).state is JobState.QUEUED


async def test_a_job_that_gets_further_is_not_to_blame(hasty: Queue) -> None:
    """Each worker on a preemptible machine crashes with the job, but later than the one before."""
    job, _ = await hasty.put(a_job())
    for step in range(5, 25, 5):
        (claim,) = await hasty.claim("spot", MODEL, 1)
        assert await hasty.snapshot(claim, [a_snapshot(claim, step=step - 1)])
        await hasty.progress(claim, step, 28)
        await hasty.reap()
        current = await hasty.get(job.id)
        assert (current.state, len(current.deaths)) == (JobState.QUEUED, 1)
    (claim,) = await hasty.claim("spot", MODEL, 1)
    await hasty.snapshot(claim, [a_snapshot(claim, step=20)])
    await hasty.reap()
    assert (await hasty.get(job.id)).state is JobState.FAILED, "no progress since the last crash"


async def test_jobs_of_a_crashed_worker_run_separately(queue: Queue, hasty: Queue) -> None:
    """A job that crashes its workers does not take other jobs with it repeatedly."""
    jobs = [(await queue.put(a_job()))[0] for _ in range(2)]
    await hasty.claim("dead", MODEL, 2)
    await hasty.reap()
    jobs += [(await queue.put(a_job()))[0] for _ in range(2)]
    claims = [await queue.claim("pool", MODEL, 4) for _ in range(3)]
    assert [[claim.job.id for claim in batch] for batch in claims] == [
        [jobs[0].id],
        [jobs[1].id],
        [jobs[2].id, jobs[3].id],
    ]
    assert [death.pool for death in claims[0][0].job.deaths] == ["dead"]


async def test_suspects_are_not_claimed_together(queue: Queue, hasty: Queue) -> None:
    suspect, _ = await queue.put(a_job())
    await hasty.claim("dead", MODEL, 1)
    await hasty.reap()
    first, _ = await queue.put(a_job(priority=PRIORITIES["high"]))
    claims = [await queue.claim("pool", MODEL, 4) for _ in range(2)]
    assert [[claim.job.id for claim in batch] for batch in claims] == [[first.id], [suspect.id]]


def busy() -> bool:
    return True


async def test_suspect_is_not_claimed_by_a_busy_worker(connect: Connect, hasty: Queue) -> None:
    """Even first in order it waits, since another worker may be free. It blocks no other job."""
    queue = await connect(affinity_s=1000)
    suspect, _ = await queue.put(a_job())
    await hasty.claim("dead", MODEL, 1)
    await hasty.reap()
    other, _ = await queue.put(a_job())
    claims = [
        await queue.claim("busy", MODEL, 4, WorkerState(busy=busy)),
        await queue.claim("busy", MODEL, 4, WorkerState(busy=busy)),
        await queue.claim("free", MODEL, 4),
    ]
    assert [[claim.job.id for claim in batch] for batch in claims] == [[other.id], [], [suspect.id]]


@pytest.mark.parametrize("deadline_s", [None, 1000])
async def test_busy_worker_drains_for_a_waiting_suspect(
    hasty: Queue, connect: Connect, deadline_s: float | None
) -> None:
    """The busy worker claims nothing until it is idle; other workers continue."""
    queue = await connect(affinity_s=0)
    deadline_at = deadline_s and time.time() + deadline_s
    suspect, _ = await queue.put(a_job(deadline_at=deadline_at, run_s=deadline_s and 1))
    await hasty.claim("dead", MODEL, 1)
    await hasty.reap()
    others = [(await queue.put(a_job()))[0] for _ in range(2)]
    claims = [
        await queue.claim("one", MODEL, 1, WorkerState(busy=busy)),
        await queue.claim("two", MODEL, 1, WorkerState(busy=busy)),
        await queue.claim("one", MODEL, 1, WorkerState(busy=busy)),
        await queue.claim("one", MODEL, 4),
        await queue.claim("one", MODEL, 4),
    ]
    ids = [[claim.job.id for claim in batch] for batch in claims]
    assert ids == [[], [others[0].id], [], [suspect.id], [others[1].id]]


async def test_crashing_jobs_do_not_run_with_the_same_jobs_again(connect: Connect) -> None:
    """Two jobs crash their worker. A job that ran with the first never runs with the second."""
    queue = await connect(lease_s=1e-6, reap_every_s=1000)
    jobs = [(await queue.put(a_job()))[0] for _ in range(6)]
    poisonous, innocent = [jobs[0], jobs[3]], [jobs[1], jobs[2], *jobs[4:]]
    bad = {job.id for job in poisonous}
    while await queue.list(limit=1, only=JobFilter(state=JobState.QUEUED)):
        held = await queue.claim("pool", MODEL, 2)
        held += await queue.claim("pool", MODEL, 2, WorkerState(busy=busy))
        if bad & {claim.job.id for claim in held}:
            await queue.reap()  # the worker has crashed, with all its jobs
        else:
            for claim in held:
                assert await queue.finish(claim, [], USAGE)
    assert {(await queue.get(job.id)).state for job in innocent} == {JobState.SUCCEEDED}
    for job in poisonous:
        current = await queue.get(job.id)
        assert (current.state, len(current.error.deaths)) == (JobState.FAILED, 2)


BRIEF = QueueSettings(lease_s=2, reap_every_s=0.1)


async def claimed(url: str) -> Job:
    """A job that a worker claimed before the outage."""
    queue = await Queue.connect(url, BRIEF)
    await queue.put(a_job())
    await queue.reap()
    (claim,) = await queue.claim("pool", MODEL, 1)
    await queue.close()
    return claim.job


async def lapses(job: Job) -> None:
    async def has_lapsed() -> bool:
        return time.time() > job.started_at + BRIEF.lease_s

    await eventually(has_lapsed)


async def check_waits_for_its_pools(url: str, job: Job) -> None:
    """Running workers may renew first; other jobs are queued again and count no crash."""
    queue = await Queue.connect(url, BRIEF)
    await queue.reap()
    assert (await queue.get(job.id)).state is JobState.RUNNING
    while (current := await queue.get(job.id)).state is JobState.RUNNING:
        await queue.reap()  # no worker renews it
    assert (current.state, current.deaths, current.attempts) == (JobState.QUEUED, [], 0)
    await queue.close()


async def test_reap_waits_for_workers_after_a_redis_restart(tmp_path: Path) -> None:
    """The server was down for longer than the leases last."""
    with embedded(tmp_path) as url:
        job = await claimed(url)
    await lapses(job)
    with embedded(tmp_path) as url:
        await check_waits_for_its_pools(url, job)


async def test_reap_waits_for_workers_after_a_redis_pause(tmp_path: Path) -> None:
    """The server was stopped for longer than the leases last, and received no renewals."""
    with embedded(tmp_path) as url:
        job = await claimed(url)
        async with Redis.from_url(url) as redis:
            server = int((await redis.info("server"))["process_id"])
        os.kill(server, signal.SIGSTOP)
        try:
            await lapses(job)
        finally:
            os.kill(server, signal.SIGCONT)
        await check_waits_for_its_pools(url, job)


async def test_crash_after_an_outage_is_counted(hasty: Queue, connect: Connect) -> None:
    """An outage excuses only jobs claimed before it."""
    easily_alarmed = await connect(lease_s=1e-6, reap_every_s=1e-6)
    await hasty.put(a_job())
    await easily_alarmed.reap()
    await easily_alarmed.reap()  # more than two microseconds later

    async def has_died() -> bool:
        (claim,) = await hasty.claim("dead", MODEL, 1)
        while (job := await hasty.get(claim.job.id)).state is JobState.RUNNING:
            await hasty.reap()
        return len(job.deaths) == 1

    await eventually(has_died)  # from a second after the outage


async def test_late_jobs_expire(queue: Queue) -> None:
    running, _ = await queue.put(a_job(deadline_at=time.time() + 0.2))
    await queue.claim("pool", MODEL, 1)
    queued, _ = await queue.put(a_job(deadline_at=time.time() - 1))
    good, _ = await queue.put(a_job(deadline_at=time.time() + 60))
    states = [JobState.RUNNING]
    while JobState.RUNNING in states:  # its deadline is 0.2 s away
        await queue.reap()
        states = [(await queue.get(job.id)).state for job in (running, queued, good)]
    assert states == [JobState.EXPIRED, JobState.EXPIRED, JobState.QUEUED]


async def test_more_than_one_batch(connect: Connect) -> None:
    hasty = await connect(lease_s=1e-6)
    for _ in range(450):
        await hasty.put(a_job())
    assert len(await hasty.claim("dead", MODEL, 450)) == 450
    await hasty.reap()
    assert len(await hasty.list(limit=1000, only=JobFilter(state=JobState.QUEUED))) == 450


async def test_store_keys_are_returned_until_deleted(queue: Queue, connect: Connect) -> None:
    await queue.put(a_job())
    (claim,) = await queue.claim("pool", MODEL, 1)
    output = an_output(claim.job)
    await queue.finish(claim, [output], USAGE)
    assert await queue.reap() == []
    dies, lives = [await connect(retention_s=1e-6) for _ in range(2)]
    files = {output.key} | {
        f"{kind}/{claim.job.id}/" for kind in ("inputs", "outputs", "snapshots")
    }
    assert set(await dies.reap()) == files
    assert set(await lives.reap()) == files  # the first never reported their deletion
    assert await lives.reap(files) == []
    assert await queue.get(claim.job.id) is None


async def test_files_of_an_unsubmitted_job_are_deleted(
    queue: Queue, connect: Connect, empty_redis: Redis
) -> None:
    """A front end crashed after it stored files and before it submitted the job."""
    impatient = await connect(deposit_s=1e-6)
    lost, put, refused = a_job(), a_job(), a_job()
    for job in (lost, put, refused):
        await queue.run(Deposit(job.id))
    assert await queue.reap() == [], "it may still be put"
    await queue.put(put)
    await queue.withdraw(refused.id)
    files = await impatient.reap()
    assert sorted(files) == sorted(job_folders(lost.id))
    assert await impatient.reap(files) == []
    assert not await empty_redis.exists("{atelier}:deposits")


async def test_no_keys_leak(
    queue: Queue, hasty: Queue, empty_redis: Redis, a_spec: ModelSpec
) -> None:
    """After jobs with every kind of end, and their retention, only the models are left."""
    await queue.register("pool", a_spec, ready=True)
    for i in range(9):
        await queue.put(
            a_job(images=1 + i % 2, deadline_at=time.time() + 60),
            idempotency_key=f"key {i}",
            digest="d",
        )
    await queue.put(a_job(deadline_at=time.time() - 1))
    finish, fail, cancel, release, retry = await queue.claim("pool", MODEL, 7)
    await hasty.claim("dead", MODEL, 2)
    await queue.progress(finish, 1, 28, "data:,preview")
    await queue.finish(finish, [an_output(finish.job)], USAGE)
    await queue.fail(fail, FAILURE)
    await queue.cancel(cancel.job.id)
    await queue.progress(release, 1, 28, "data:,preview")
    await queue.release(release)
    await queue.fail(retry, FAILURE, retry=True)
    await hasty.reap()
    for job in await queue.list(limit=100):
        await queue.cancel(job.id)
    await queue.unregister("pool", a_spec.name)
    await hasty.reap(await hasty.reap())
    assert {key for key in await empty_redis.keys("*") if ":call:" not in key} == {
        "{atelier}:history",
        "{atelier}:ledger",
        "{atelier}:models",
        "{atelier}:reaped",
        "{atelier}:totals",
        "{atelier}:seen",
    }
    lives = [await empty_redis.pttl(key) for key in await empty_redis.keys("*:call:*")]
    assert lives
    assert all(0 < life <= 60_000 for life in lives)  # a minute, for repeats


@pytest.mark.parametrize("ends", [True, False])
async def test_only_ended_jobs_are_forgotten(queue: Queue, hasty: Queue, ends: bool) -> None:
    job, _ = await queue.put(a_job())
    await queue.claim("pool", MODEL, 1)
    if ends:
        await queue.cancel(job.id)
    assert bool(await hasty.reap()) is ends
    assert (await queue.get(job.id) is None) is ends
