"""Worker that loses its engine, store, lease or Redis; and jobs that were lost with another
worker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from deploy.local.embedded_redis import embedded
from models.parallel.axis_rules import Layout
from service.jobs.model.job import Job, JobState, Usage
from service.jobs.queue import Claim, Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from tests.workers.jobs import ended, lapse, lapsed, pixels, reached, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import at_work, files_in, status
from tests.workers.toy import SPEC, ToyPipeline
from workers.pool.idle_work import IdleWork
from workers.pool.worker import Worker


def walled(folder: Path) -> tuple[Store, Path]:
    """Return a store, and the file that stands in the place of its folder of outputs and blocks
    writes."""
    store, wall = Store(str(folder / "outputs")), folder / "outputs" / "outputs"
    wall.write_text("a file where a folder should be")
    return store, wall


async def test_job_of_a_crashed_worker_runs_without_others(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, redis_url: str
) -> None:
    """A worker crashed while running this job, so it now runs alone."""
    short_leases = await Queue.connect(redis_url, QueueSettings(lease_s=1e-6))
    suspect, other = toy_job(phase="gated"), toy_job(phase="gated")
    await queue.put(suspect)
    await short_leases.claim("dead", SPEC.name, 1)
    await short_leases.reap()
    await queue.put(other)
    async with at_work(pipeline, layout, queue, store) as (worker, _):
        await asyncio.to_thread(pipeline.gate.wait)
        assert worker.jobs == 1
        pipeline.gate.open()
        assert (await ended(queue, suspect)).state == JobState.SUCCEEDED
        other = await ended(queue, other)
    assert other.started_at > (await queue.get(suspect.id)).started_at
    await short_leases.close()


async def test_suspect_does_not_start_with_other_jobs(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, redis_url: str
) -> None:
    short_leases = await Queue.connect(redis_url, QueueSettings(lease_s=1e-6))
    first, suspect, other = toy_job(phase="gated"), toy_job(), toy_job()
    await queue.put(suspect)
    await short_leases.claim("dead", SPEC.name, 1)
    await short_leases.reap()
    [claim] = await queue.claim("another", SPEC.name, 1)  # so that the worker begins without it
    await queue.put(first)
    unhurried = await Queue.connect(redis_url, QueueSettings(affinity_s=1000))
    async with at_work(pipeline, layout, unhurried, store):
        await asyncio.to_thread(pipeline.gate.wait)
        await queue.release(claim)
        await queue.put(other)
        await reached(queue, other, JobState.RUNNING)
        assert (await queue.get(suspect.id)).state == JobState.QUEUED
        pipeline.gate.open()
        first, suspect = await ended(queue, first), await ended(queue, suspect)
    assert suspect.state == JobState.SUCCEEDED
    assert suspect.started_at > first.finished_at
    await short_leases.close()
    await unhurried.close()


async def test_engine_failure_counts_as_a_crash_of_its_jobs(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """Each of the engine's jobs runs alone afterwards, and none has failed."""
    jobs = [toy_job(phase="gated") for _ in range(2)]
    for job in jobs:
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store) as (worker, task):
        await until(lambda: worker.jobs == 2)
        await asyncio.to_thread(pipeline.gate.wait)
        worker.engine.step_loop.submit(None)  # type: ignore[attr-defined]  # no caller sends this
        pipeline.gate.open()
        assert await asyncio.wait_for(task, DEADLINE_S) == 1
        assert await status(queue) == (0, False)
    for job in jobs:
        await lapsed(queue, job)
    claims = [await queue.claim("another", SPEC.name, 4) for _ in jobs]
    assert [[claim.job.id for claim in claimed] for claimed in claims] == [[job.id] for job in jobs]
    assert [len(claim.job.deaths) for [claim] in claims] == [1, 1]


@asynccontextmanager
async def claimed_amid_idle_work(pool: Worker, queue: Queue) -> AsyncIterator[Job]:
    """Yield a job that is claimed while the preceding idle work does not stop."""
    ends, under_way = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        under_way.set()
        try:
            await asyncio.Event().wait()
        finally:
            await ends.wait()

    await until(
        lambda: pool._idle._task is not None
    )  # the worker's own, which begins with its claims
    idle, pool._idle = pool._idle, IdleWork(work)
    pool._idle.begin()
    await idle.interrupt()
    await under_way.wait()
    job = toy_job()
    await queue.put(job)
    await reached(queue, job, JobState.RUNNING)
    yield job
    ends.set()


async def test_claim_is_renewed_while_idle_work_stops(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """The last step of idle work may exceed a lease. No other worker may start the same job."""
    async with at_work(pipeline, layout, queue, store, lease_s=1) as (worker, _):
        async with claimed_amid_idle_work(worker, queue) as job:
            for _ in range(2):
                until_s = await queue.redis.zscore(keys.LEASES, job.id)
                await until(lambda s=until_s: is_renewed(queue, job, s))
        job = await ended(queue, job)
    assert (job.state, job.attempts, len(job.deaths)) == (JobState.SUCCEEDED, 1, 0)


async def is_renewed(queue: Queue, job: Job, until_s: float) -> bool:
    return await queue.redis.zscore(keys.LEASES, job.id) > until_s


async def test_claim_lost_while_idle_work_stops_is_not_started(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    async with at_work(pipeline, layout, queue, store, lease_s=1) as (worker, _):
        started: list[str] = []
        begin = worker._running._run_job
        worker._running._run_job = lambda work: started.append(work.claim.job.id) or begin(work)
        async with claimed_amid_idle_work(worker, queue) as job:
            await queue.cancel(job.id)
            await until(lambda: not worker._running.leases._held)
        other = toy_job()
        await queue.put(other)
        assert (await ended(queue, other)).state is JobState.SUCCEEDED
        assert started == [other.id]
        assert (await ended(queue, job)).state is JobState.CANCELED


async def test_a_broken_store_lets_another_pool_try(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, redis_url: str, tmp_path: Path
) -> None:
    store, _ = walled(tmp_path)
    job = toy_job()
    await queue.put(job)
    twice = await Queue.connect(redis_url, QueueSettings(max_attempts=2))
    async with at_work(pipeline, layout, twice, store, store_patience_s=0.5):
        job = await ended(queue, job)
    await twice.close()
    assert (job.state, job.error.code, job.attempts) == (JobState.FAILED, "store", 2)


async def test_worker_with_lapsed_lease_changes_nothing(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, tmp_path: Path
) -> None:
    """The lease expires before it is renewed, and another worker has the job by the end."""
    job = toy_job(phase="gated", num_inference_steps=10)
    await queue.put(job)
    store, long_s = Store(str(tmp_path)), 1000.0
    async with at_work(pipeline, layout, queue, store, lease_s=long_s, slots=1) as (worker, _):
        await asyncio.to_thread(pipeline.gate.wait)
        await lapsed(queue, job)
        [other] = await queue.claim("another", SPEC.name, 1)
        pipeline.gate.open()
        await until(lambda: worker.jobs == 0)
        assert (await queue.get(job.id)).state == JobState.RUNNING
        assert await queue.finish(other, [], Usage())
        # It learns of the loss from its progress, or at the end, when it has stored the image.
        await until(lambda: not files_in(tmp_path))


async def test_lost_job_can_be_claimed_again(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(phase="gated", num_inference_steps=10)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, slots=2) as (worker, _):
        await asyncio.to_thread(pipeline.gate.wait)
        await lapse(queue, job)

        async def claimed_again() -> bool:
            return (await queue.get(job.id)).attempts == 2

        await until(claimed_again)
        pipeline.gate.open()
        job = await ended(queue, job)
        assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2)
        await until(lambda: worker.jobs == 0)
        assert len(await pixels(store, job)) == 1


async def test_store_outage_is_retried(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, wall = walled(tmp_path)
    job = toy_job()
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        await until(lambda: "the store failed" in caplog.text)
        wall.unlink()
        job = await ended(queue, job)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)


async def test_outputs_are_held_during_a_store_outage(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Finished images are held meanwhile, and not made again.

    A canceled job's images are dropped.
    """
    store, wall = walled(tmp_path)
    job, canceled = toy_job(phase="gated", num_images=2), toy_job()
    for each in (job, canceled):
        await queue.put(each)
    pipeline.gate.open()
    async with at_work(pipeline, layout, queue, store, store_patience_s=1000) as (worker, _):
        await until(lambda: caplog.text.count("the store failed") >= 15)  # three of them: 3 s
        assert worker.jobs == 2
        await queue.cancel(canceled.id)
        await until(lambda: worker.jobs == 1)
        wall.unlink()
        job = await ended(queue, job)
        assert len(await pixels(store, job)) == 2
        await until(lambda: worker.jobs == 0)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)
    assert pipeline.gate.count <= 2 * 4, "no step is done twice; two images may share one"
    assert not (tmp_path / "outputs" / "outputs" / canceled.id).exists()


async def test_worker_with_unstored_outputs_exits_in_time(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "outputs").write_text("a file where a folder should be")
    job = toy_job()
    await queue.put(job)
    patient = {"store_patience_s": 1000, "drain_s": 1}
    async with at_work(pipeline, layout, queue, Store(str(tmp_path)), **patient) as (worker, task):
        await until(lambda: "the store failed" in caplog.text)
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    job = await queue.get(job.id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)


class SlowStore(Store):
    """Store whose writes wait for `let`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.requested, self.let = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, data: bytes, content_type: str) -> None:
        self.requested.set()
        await self.let.wait()
        await super().put(key, data, content_type)


@pytest.mark.parametrize("how", ["deleted", "canceled"])
async def test_job_that_ends_during_writing_leaves_no_files(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, tmp_path: Path, how: str
) -> None:
    store = SlowStore(str(tmp_path))
    job = toy_job()
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store) as (worker, _):
        await store.requested.wait()
        await (queue.delete(job.id) if how == "deleted" else queue.cancel(job.id))
        await until(lambda: worker.jobs == 0)
        store.let.set()
        await until(lambda: not {"SlowStore.put", "RunningJobs._clear_up"} & doing())
        assert not await asyncio.to_thread(files_in, tmp_path)


def doing() -> set[str]:
    """Return the names of the functions that tasks run."""
    return {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}


async def test_worker_survives_a_redis_restart(
    pipeline: ToyPipeline, layout: Layout, store: Store, tmp_path: Path
) -> None:
    """Redis is away for longer than the lease.

    The worker finishes, and delivers the result later.
    """
    job = toy_job(phase="gated")
    settings = QueueSettings(lease_s=2)
    with embedded(tmp_path) as url:
        queue = await Queue.connect(url, settings)
        await queue.put(job)
        at = at_work(pipeline, layout, queue, store)
        worker, _ = await at.__aenter__()
        await asyncio.to_thread(pipeline.gate.wait)
        started_at = (await queue.get(job.id)).started_at
        async with Redis.from_url(url) as redis:
            os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)
    pipeline.gate.open()
    await until(lambda: time.time() > started_at + settings.lease_s)
    assert worker.jobs == 1
    with embedded(tmp_path) as url:
        front_end = await Queue.connect(url, settings)
        await front_end.reap()
        job = await ended(front_end, job)
        assert (job.state, job.attempts, job.deaths) == (JobState.SUCCEEDED, 1, [])
        assert len(await pixels(store, job)) == 1
        await at.__aexit__(None, None, None)
        await queue.close()
        await front_end.close()


async def test_exit_during_a_redis_outage_is_not_a_crash(
    pipeline: ToyPipeline, layout: Layout, store: Store, tmp_path: Path
) -> None:
    """The worker cannot give its job back. Once Redis returns, only the lease expires."""
    job = toy_job(phase="gated", num_inference_steps=50)
    settings = QueueSettings(lease_s=2, reap_every_s=0.1)
    with embedded(tmp_path) as url:
        queue = await Queue.connect(url, settings)
        await queue.put(job)
        at = at_work(pipeline, layout, queue, store, drain_s=1)
        worker, task = await at.__aenter__()
        await asyncio.to_thread(pipeline.gate.wait)
        async with Redis.from_url(url) as redis:
            os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)
    worker.stop()
    assert await asyncio.wait_for(task, DEADLINE_S) == 0
    await at.__aexit__(None, None, None)
    await queue.close()
    with embedded(tmp_path) as url:
        front_end = await Queue.connect(url, settings)

        async def is_back() -> bool:
            await front_end.reap()
            return await front_end.get(job.id) != running

        running = await front_end.get(job.id)
        await until(is_back)
        job = await front_end.get(job.id)
        await front_end.close()
    assert running.state == JobState.RUNNING
    assert (job.state, job.deaths, job.attempts) == (JobState.QUEUED, [], 0)


async def test_job_canceled_before_its_first_step_frees_its_slots(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """The cancellation arrives between the claim and the first step of the job's task."""
    async with at_work(pipeline, layout, queue, store, slots=2) as (worker, _):
        await until(lambda: worker.is_ready)
        running, canceled = worker._running, list[str]()
        start = running.start

        def start_and_drop(claim: Claim) -> None:
            start(claim)
            running.drop_job(claim.job.id)
            canceled.append(claim.job.id)

        running.start = start_and_drop
        jobs = [toy_job(num_images=2) for _ in range(3)]
        for job in jobs:
            await queue.put(job)
            await until(lambda job=job: job.id in canceled and not worker.jobs)
            await queue.cancel(job.id)
            assert worker._capacity.is_unused and not running.leases._held
        running.start = start
        await queue.put(last := toy_job(num_images=2))
        assert (await ended(queue, last)).state == JobState.SUCCEEDED


async def test_worker_with_leaked_slots_exits(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """The worker is no longer ready, and exits so that it is restarted, regardless of the cause."""
    with pytest.raises(RuntimeError, match="slots are taken while no job runs"):
        async with at_work(pipeline, layout, queue, store, lease_s=0.3) as (worker, task):
            await until(lambda: worker.is_ready)
            worker._capacity.enter(1)
            await until(task.done)
            assert await status(queue) == (0, False)
