"""A pool in this process, at the real queue, with a pipeline that misbehaves when told to."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from deploy.redis import embedded
from models.pipeline import Fields
from models.sharding import Layout
from service.jobs.job import JobState, Output, Snapshot, Usage
from service.jobs.outputs import Store, input_key, snapshot_key
from service.jobs.queue import Queue
from service.settings import ConfigError, PoolSettings, QueueSettings, Settings
from tests.workers.jobs import ended, pixels, reached, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.toy import SPEC, ToyPipeline, reference
from workers.engine import Engine
from workers.files import DEFAULT_FPS
from workers.keeper import REST_S
from workers.pool import Pool, run_pool

LEASE_S = 3.0


@asynccontextmanager
async def at_work(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    store: Store,
    warmup: Fields = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[tuple[Pool, asyncio.Task[int]]]:
    """A pool that runs, and its task; whatever the test does, it has ended afterwards."""
    wanted = PoolSettings(**{"model": SPEC.name, "slots": 4, "preview_every_s": 0, **settings})
    engine = Engine(pipeline, layout, wanted.slots)
    pool = Pool("toy", engine, queue, store, wanted, LEASE_S)
    task = asyncio.create_task(pool.run([warmup]))
    try:
        yield pool, task
        pool.stop_now()
        pipeline.gate.open()
        await asyncio.wait_for(task, DEADLINE_S)
    finally:
        pipeline.gate.open()
        pipeline.compile_gate.set()
        task.cancel()
        engine.close()


async def status(queue: Queue) -> tuple[int, bool]:
    """How many pools serve the toy, and whether it is ready."""
    models = await queue.models()
    return (len(models[SPEC.name].pools), models[SPEC.name].ready) if models else (0, False)


async def test_ready_only_after_the_warm_up_and_gone_at_the_end(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    async with at_work(pipeline, layout, queue, store):
        await until(lambda: has(queue, (1, False)))
        await until(lambda: has(queue, (1, True)))
    assert await status(queue) == (0, False)


async def test_a_signal_ends_the_warm_up(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    slow = {"phase": "slow to compile"}
    async with at_work(pipeline, layout, queue, store, warmup=slow) as (pool, task):
        await until(lambda: has(queue, (1, False)))
        pool.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0


async def test_a_model_that_does_not_compile_ends_the_pool(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    with pytest.raises(AssertionError):
        async with at_work(pipeline, layout, queue, store, warmup={"phase": "flawed"}) as (_, task):
            await asyncio.wait_for(task, DEADLINE_S)
    assert await status(queue) == (0, False)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def has(queue: Queue, expected: tuple[int, bool]) -> bool:
    return await status(queue) == expected


async def test_jobs_become_files(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """More jobs than slots, one of three pictures: each is the reference's, with its own seed."""
    jobs = [toy_job(seed=10 * i, num_inference_steps=3 + i) for i in range(6)]
    jobs.append(toy_job(seed=2**63 - 4, num_images=3))
    for job in jobs:
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        for job in [await ended(queue, job) for job in jobs]:
            made = await pixels(store, job)
            assert len(made) == job.images
            for index, picture in enumerate(made):
                seed = job.request["seed"] + index
                expected = reference(pipeline, {**job.request, "seed": seed}).astype(int)
                assert np.abs(picture - expected).max() <= 1  # as in test_engine
                assert (job.outputs[index].seed, job.outputs[index].index) == (seed, index)
            assert job.step == job.steps == job.usage.steps
            assert job.usage.device_seconds > 0
            assert job.usage.queue_seconds == pytest.approx(job.started_at - job.created_at)


async def test_predictions_are_held_against_what_was_taken(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    def told(name: str) -> float:
        labels = {"model": SPEC.name}
        return REGISTRY.get_sample_value(f"atelier_job_cost_ratio_{name}", labels) or 0

    count, total = told("count"), told("sum")
    job, other = toy_job().model_copy(update={"run_s": 1.0, "cost": 1e-3}), toy_job()
    for each in (job, other):
        await queue.put(each)
    async with at_work(pipeline, layout, queue, store):
        job, _ = [await ended(queue, each) for each in (job, other)]
        await until(lambda: told("count") > count)
    assert told("count") - count == 1, "of the other one nothing was predicted"
    assert told("sum") - total == pytest.approx(job.usage.device_seconds / job.cost)


async def test_clips_become_one_file_each(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    formats = {"mp4": "video/mp4", "webm": "video/webm", "gif": "image/gif"}
    jobs = [toy_job(num_frames=5, output={"format": format}) for format in formats]
    jobs.append(toy_job(num_frames=5, fps=None, num_images=2, output={"format": "mp4"}))
    for job in jobs:
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        *single, double = [await ended(queue, job) for job in jobs]
    for job, (format, content_type) in zip(single, formats.items(), strict=True):
        [output] = job.outputs
        assert output.content_type == content_type
        assert output.key.endswith(f".{format}")
        assert (output.num_frames, output.fps, output.duration_s) == (5, 8, 0.625)
        assert (output.height, output.width) == (8, 64)
        with av.open(io.BytesIO(await store.get(output.key))) as file:
            assert len(list(file.decode(video=0))) == 5
    assert [output.index for output in double.outputs] == [0, 1]
    assert [output.fps for output in double.outputs] == [DEFAULT_FPS] * 2


async def test_frames_become_files_that_are_counted_on(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(num_frames=3, num_images=2, seed=5)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        job = await ended(queue, job)
    assert [output.index for output in job.outputs] == list(range(6))
    assert [output.seed for output in job.outputs] == [5, 5, 5, 6, 6, 6]
    assert {(output.content_type, output.num_frames) for output in job.outputs} == {
        ("image/png", None)
    }
    clips = [reference(pipeline, {**job.request, "seed": seed}) for seed in (5, 6)]
    made = await pixels(store, job)
    assert (
        np.abs(np.stack(made) - np.concatenate(clips).astype(int)).max() <= 1
    )  # as in test_engine


async def test_pictures_of_the_request_reach_the_pipeline(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job()
    job.request["image"] = input_key(job.id, "image")
    await store.put(job.request["image"], b"the picture's bytes", "image/png")
    await queue.put(job)
    missing = toy_job()
    missing.request["image"] = input_key(missing.id, "image")
    await queue.put(missing)
    async with at_work(pipeline, layout, queue, store):
        assert (await ended(queue, job)).state == JobState.SUCCEEDED
        assert pipeline.images == {"image": b"the picture's bytes"}
        missing = await ended(queue, missing)
    assert (missing.state, missing.error.code) == (JobState.FAILED, "store")


async def test_failures_end_their_jobs_alone(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    expected = {
        "non_finite": toy_job(nan_at=1),
        "invalid_request": toy_job(width=33),
        "out_of_memory": toy_job(phase="hopeless"),
    }
    partly = toy_job(num_images=2, phase="hopeless")
    good = toy_job(seed=1)
    for job in (*expected.values(), partly, good):
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        for code, job in expected.items():
            job = await ended(queue, job)
            assert (job.state, job.error.code, job.attempts) == (JobState.FAILED, code, 1)
        assert (await ended(queue, partly)).state == JobState.FAILED
        assert (await ended(queue, good)).state == JobState.SUCCEEDED


async def test_cancel_while_running_and_while_waiting_for_a_slot(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    many = toy_job(phase="gated", num_images=6, num_inference_steps=50)
    await queue.put(many)
    async with at_work(pipeline, layout, queue, store) as (pool, _):
        await asyncio.to_thread(pipeline.gate.wait)
        await until(lambda: pool.engine.stepper.load == 6)
        await queue.cancel(many.id)
        await until(lambda: pool.jobs == 0)
        begun = pipeline.gate.count
        pipeline.gate.open()
        other = toy_job()
        await queue.put(other)
        assert (await ended(queue, other)).state == JobState.SUCCEEDED
        assert pipeline.gate.count - begun <= 1, "at most the step that was sent already"
        assert (await queue.get(many.id)).state == JobState.CANCELED


async def test_progress_and_previews_are_events(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(phase="gated", num_inference_steps=8, num_images=2)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, preview_every_s=1e-6):
        seen = []
        async with asyncio.timeout(DEADLINE_S):
            async for event in queue.events(job.id):
                seen.append(event)
                pipeline.gate.open(1)
    names = [event.name for event in seen]
    assert names[0] == "queued"
    assert {"running", "progress", "preview"} <= set(names)
    assert names[-1] == "succeeded"
    told = [event.data["step"] for event in seen if event.name == "progress"]
    assert told == sorted(told)
    assert all(event.data["steps"] == 16 for event in seen if event.name == "progress")
    previews = [event.data["preview"] for event in seen if event.name == "preview"]
    assert all(preview.startswith("data:image/webp;base64,") for preview in previews)


async def test_a_clip_s_preview_moves_as_fast_as_the_clip(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(phase="gated", num_inference_steps=4, num_frames=5)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, preview_every_s=1e-6):
        async with asyncio.timeout(DEADLINE_S):
            async for event in queue.events(job.id):
                pipeline.gate.open(1)
                if event.name == "preview":
                    break
    encoded = event.data["preview"].removeprefix("data:image/webp;base64,")
    image = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert image.n_frames == 5
    image.seek(1)
    image.load()
    assert image.info["duration"] == 1000 / SPEC.defaults["fps"]


async def test_drain_finishes_what_runs_and_leaves_what_waits(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    running, waiting = toy_job(phase="gated"), toy_job()
    await queue.put(running)
    async with at_work(pipeline, layout, queue, store) as (pool, task):
        await asyncio.to_thread(pipeline.gate.wait)
        pool.stop()
        await queue.put(waiting)
        pipeline.gate.open()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    assert (await queue.get(running.id)).state == JobState.SUCCEEDED
    assert (await queue.get(waiting.id)).state == JobState.QUEUED


@pytest.mark.parametrize("how", ["too long", "a second signal"])
async def test_what_does_not_end_in_time_is_given_back(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, how: str
) -> None:
    job = toy_job(phase="gated", num_inference_steps=50)
    await queue.put(job)
    drain_s = 0.1 if how == "too long" else 1000
    async with at_work(pipeline, layout, queue, store, drain_s=drain_s) as (pool, task):
        await asyncio.to_thread(pipeline.gate.wait)
        pool.stop()
        if how == "a second signal":
            pool.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    job = await queue.get(job.id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)


async def test_what_a_drain_puts_aside_goes_on_elsewhere(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """A step that takes too long is left out; those before it need not be done again."""
    job = toy_job(phase="gated", num_inference_steps=50, seed=3)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, drain_s=1) as (pool, task):
        pipeline.gate.open(3)
        await until(lambda: has_step(queue, job.id, 2))
        pool.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    job = await queue.get(job.id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)
    [kept] = job.snapshots
    assert (kept.index, kept.fence) == (0, 1)
    assert 2 <= kept.step <= 3, "the gate was open for three steps, two of them known to be done"
    other = ToyPipeline()
    other.gate.open()
    async with at_work(other, layout, queue, store):
        job = await ended(queue, job)
        assert other.gate.count == 50 - kept.step
    [picture] = await pixels(store, job)
    assert (
        np.abs(picture - reference(other, job.request).astype(int)).max() <= 1
    )  # as in test_engine
    assert (job.usage.steps, job.snapshots) == (50, [])
    await until(lambda: swept(queue, store))
    assert not await store.exists(kept.key)


async def has_step(queue: Queue, job_id: str, step: int) -> bool:
    return (await queue.get(job_id)).step >= step


async def swept(queue: Queue, store: Store) -> bool:
    """As the front end does."""
    files = await queue.reap()
    await store.delete(files)
    return not files


async def test_finished_pictures_are_not_made_again(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(phase="gated", num_inference_steps=10, num_images=2)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, slots=1, drain_s=1) as (pool, task):
        pipeline.gate.open(13)

        async def one_is_finished() -> bool:
            return bool((await queue.get(job.id)).snapshots) and pipeline.gate.count == 14

        await until(one_is_finished)
        pool.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    finished, begun = sorted((await queue.get(job.id)).snapshots, key=lambda one: -one.step)
    assert (finished.step, finished.key) == (10, None)
    assert 2 <= begun.step <= 3
    other = ToyPipeline()
    other.gate.open()
    async with at_work(other, layout, queue, store):
        job = await ended(queue, job)
        assert other.gate.count == 10 - begun.step
    assert job.outputs[finished.index] == finished.outputs[0]
    for index, picture in enumerate(await pixels(store, job)):
        expected = reference(other, {**job.request, "seed": index}).astype(int)
        assert np.abs(picture - expected).max() <= 1  # as in test_engine
    assert job.usage.steps == job.step == 20


@pytest.mark.parametrize("what", ["the snapshot", "the finished picture"])
async def test_what_has_left_the_store_is_made_again(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, what: str
) -> None:
    job = toy_job(num_images=2)
    await queue.put(job)
    [claim] = await queue.claim("before", SPEC.name, 2)
    key = f"outputs/{job.id}/1-0.png"
    file = Output(
        index=0, key=key, content_type="image/png", width=1, height=1, seed=0, sha256="", bytes=1
    )
    kept = {
        "the snapshot": Snapshot(index=0, step=2, fence=1, key=snapshot_key(job.id, 1, 0, 2)),
        "the finished picture": Snapshot(index=0, step=4, fence=1, outputs=(file,)),
    }
    assert await queue.snapshot(claim, [kept[what]])
    await queue.release(claim)
    async with at_work(pipeline, layout, queue, store):
        job = await ended(queue, job)
    assert len(await pixels(store, job)) == 2
    assert job.usage.steps == 8


async def test_a_running_job_is_kept_as_often_as_it_pays(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(num_inference_steps=4000)
    await queue.put(job)
    seen: set[str] = set()

    async def is_done() -> bool:
        nonlocal job
        job = await queue.get(job.id)
        seen.update(one.key for one in job.snapshots)
        return job.state.ended

    async with at_work(pipeline, layout, queue, store, snapshot_share=0.9):
        await until(is_done)
        assert job.state == JobState.SUCCEEDED
    assert len(seen) >= 2
    await until(lambda: swept(queue, store))
    assert not any([await store.exists(key) for key in seen])


async def test_a_store_that_is_away_is_not_asked_at_each_step(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "snapshots").write_text("a file where a folder should be")
    job = toy_job(num_inference_steps=4000)
    await queue.put(job)
    began = time.monotonic()
    async with at_work(pipeline, layout, queue, store, snapshot_share=0.9):
        assert (await ended(queue, job)).state == JobState.SUCCEEDED
        asked = caplog.text.count("is not kept")
        assert 1 <= asked <= 1 + (time.monotonic() - began) / REST_S


async def test_a_suspect_has_the_pool_to_itself(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, redis_url: str
) -> None:
    """A pool died with it: if another does, nobody else should be beside it."""
    brief = await Queue.connect(redis_url, QueueSettings(lease_s=1e-6))
    suspect, other = toy_job(phase="gated"), toy_job(phase="gated")
    await queue.put(suspect)
    await brief.claim("dead", SPEC.name, 1)
    await brief.reap()
    await queue.put(other)
    async with at_work(pipeline, layout, queue, store) as (pool, _):
        await asyncio.to_thread(pipeline.gate.wait)
        assert pool.jobs == 1
        pipeline.gate.open()
        assert (await ended(queue, suspect)).state == JobState.SUCCEEDED
        other = await ended(queue, other)
    assert other.started_at > (await queue.get(suspect.id)).started_at
    await brief.close()


async def test_a_suspect_is_not_begun_beside_others(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, redis_url: str
) -> None:
    brief = await Queue.connect(redis_url, QueueSettings(lease_s=1e-6))
    first, suspect, other = toy_job(phase="gated"), toy_job(), toy_job()
    await queue.put(suspect)
    await brief.claim("dead", SPEC.name, 1)
    await brief.reap()
    [held] = await queue.claim("another", SPEC.name, 1)  # so that the pool begins without it
    await queue.put(first)
    unhurried = await Queue.connect(redis_url, QueueSettings(affinity_s=1000))
    async with at_work(pipeline, layout, unhurried, store):
        await asyncio.to_thread(pipeline.gate.wait)
        await queue.release(held)
        await queue.put(other)
        await reached(queue, other, JobState.RUNNING)
        assert (await queue.get(suspect.id)).state == JobState.QUEUED
        pipeline.gate.open()
        first, suspect = await ended(queue, first), await ended(queue, suspect)
    assert suspect.state == JobState.SUCCEEDED
    assert suspect.started_at > first.finished_at
    await brief.close()
    await unhurried.close()


async def test_an_engine_that_dies_is_a_death_of_its_jobs(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, redis_url: str
) -> None:
    """Whichever of them it was: each goes on alone, and none has failed."""
    brief = await Queue.connect(redis_url, QueueSettings(lease_s=1))
    jobs = [toy_job(phase="gated") for _ in range(2)]
    for job in jobs:
        await queue.put(job)
    async with at_work(pipeline, layout, brief, store) as (pool, task):
        await asyncio.to_thread(pipeline.gate.wait)
        pool.engine.stepper.submit(None)  # what no caller would do
        pipeline.gate.open()
        assert await asyncio.wait_for(task, DEADLINE_S) == 1
        assert await status(queue) == (0, False)

    async def are_back() -> bool:
        await brief.reap()
        return {(await queue.get(job.id)).state for job in jobs} == {JobState.QUEUED}

    await until(are_back)
    claims = [await queue.claim("another", SPEC.name, 4) for _ in jobs]
    assert [[claim.job.id for claim in taken] for taken in claims] == [[job.id] for job in jobs]
    assert [len(claim.job.deaths) for [claim] in claims] == [1, 1]
    await brief.close()


async def test_a_broken_store_lets_another_pool_try(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, redis_url: str, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "outputs"))
    (tmp_path / "outputs" / "outputs").write_text("a file where a folder should be")
    job = toy_job()
    await queue.put(job)
    twice = await Queue.connect(redis_url, QueueSettings(max_attempts=2))
    async with at_work(pipeline, layout, twice, store, store_patience_s=0.5):
        job = await ended(queue, job)
    await twice.close()
    assert (job.state, job.error.code, job.attempts) == (JobState.FAILED, "store", 2)


async def test_a_pool_that_lost_its_lease_changes_nothing(
    pipeline: ToyPipeline, layout: Layout, redis_url: str, empty_redis: object, tmp_path: Path
) -> None:
    """Its lease is shorter than it believes; another pool has the job when it is done."""
    queue = await Queue.connect(redis_url, QueueSettings(lease_s=0.3))
    job = toy_job(phase="gated", num_inference_steps=10)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, Store(str(tmp_path)), slots=1) as (pool, _):
        await asyncio.to_thread(pipeline.gate.wait)

        async def lapsed() -> bool:
            await queue.reap()
            return (await queue.get(job.id)).state == JobState.QUEUED

        await until(lapsed)
        [other] = await queue.claim("another", SPEC.name, 1)
        pipeline.gate.open()
        await until(lambda: pool.jobs == 0)
        assert (await queue.get(job.id)).state == JobState.RUNNING
        assert await queue.finish(other, [], Usage())
    assert not files_in(tmp_path)
    await queue.close()


async def test_a_pool_may_claim_anew_what_it_has_lost(
    pipeline: ToyPipeline, layout: Layout, redis_url: str, empty_redis: object, store: Store
) -> None:
    queue = await Queue.connect(redis_url, QueueSettings(lease_s=0.3))
    job = toy_job(phase="gated", num_inference_steps=10)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, slots=2) as (pool, _):
        await asyncio.to_thread(pipeline.gate.wait)

        async def claimed_again() -> bool:
            await queue.reap()
            return (await queue.get(job.id)).attempts == 2

        await until(claimed_again)
        pipeline.gate.open()
        job = await ended(queue, job)
        assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2)
        await until(lambda: pool.jobs == 0)
        assert len(await pixels(store, job)) == 1
    await queue.close()


async def test_a_store_may_go_and_come_back(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, wall = Store(str(tmp_path / "outputs")), tmp_path / "outputs" / "outputs"
    wall.write_text("a file where a folder should be")
    job = toy_job()
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store):
        await until(lambda: "the store failed" in caplog.text)
        wall.unlink()
        job = await ended(queue, job)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)


async def test_a_store_may_be_away_for_longer_than_a_moment(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The finished pictures are held meanwhile, and not made again; a cancel lets go of one."""
    store, wall = Store(str(tmp_path / "outputs")), tmp_path / "outputs" / "outputs"
    wall.write_text("a file where a folder should be")
    job, canceled = toy_job(phase="gated", num_images=2), toy_job()
    for each in (job, canceled):
        await queue.put(each)
    pipeline.gate.open()
    async with at_work(pipeline, layout, queue, store, store_patience_s=1000) as (pool, _):
        await until(lambda: caplog.text.count("the store failed") >= 15)  # three of them: 3 s
        assert pool.jobs == 2
        await queue.cancel(canceled.id)
        await until(lambda: pool.jobs == 1)
        wall.unlink()
        job = await ended(queue, job)
        assert len(await pixels(store, job)) == 2
        await until(lambda: pool.jobs == 0)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)
    assert pipeline.gate.count <= 2 * 4, "no step is done twice; two pictures may share one"
    assert not (tmp_path / "outputs" / "outputs" / canceled.id).exists()


async def test_a_pool_that_holds_what_is_not_stored_leaves_in_time(
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
    async with at_work(pipeline, layout, queue, Store(str(tmp_path)), **patient) as (pool, task):
        await until(lambda: "the store failed" in caplog.text)
        pool.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    job = await queue.get(job.id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)


class SlowStore(Store):
    """Writes when it is let."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, data: bytes, content_type: str) -> None:
        self.asked.set()
        await self.let.wait()
        await super().put(key, data, content_type)


async def test_a_job_that_is_deleted_while_its_files_are_written_leaves_none(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, tmp_path: Path
) -> None:
    store = SlowStore(str(tmp_path))
    job = toy_job()
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store) as (pool, _):
        await store.asked.wait()
        await queue.delete(job.id)
        await until(lambda: pool.jobs == 0)
        store.let.set()
        await until(lambda: not {"SlowStore.put", "Desk._clear_up"} & doing())
        assert not await asyncio.to_thread(files_in, tmp_path)


def doing() -> set[str]:
    """Names of the functions that tasks are in."""
    return {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}


async def test_redis_may_be_killed_and_come_back(
    pipeline: ToyPipeline, layout: Layout, store: Store, tmp_path: Path
) -> None:
    """It is away for longer than the lease: the pool finishes what it has, holds the result, and
    hands it in; nobody takes the job for lost meanwhile."""
    job = toy_job(phase="gated")
    settings = QueueSettings(lease_s=2)
    with embedded(tmp_path) as url:
        queue = await Queue.connect(url, settings)
        await queue.put(job)
        at = at_work(pipeline, layout, queue, store)
        pool, _ = await at.__aenter__()
        await asyncio.to_thread(pipeline.gate.wait)
        started_at = (await queue.get(job.id)).started_at
        async with Redis.from_url(url) as redis:
            os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)
    pipeline.gate.open()
    await until(lambda: time.time() > started_at + settings.lease_s)
    assert pool.jobs == 1
    with embedded(tmp_path) as url:
        front_end = await Queue.connect(url, settings)
        await front_end.reap()
        job = await ended(front_end, job)
        assert (job.state, job.attempts, job.deaths) == (JobState.SUCCEEDED, 1, [])
        assert len(await pixels(store, job)) == 1
        await at.__aexit__(None, None, None)
        await queue.close()
        await front_end.close()


async def test_a_pool_that_leaves_while_redis_is_away_has_not_died(
    pipeline: ToyPipeline, layout: Layout, store: Store, tmp_path: Path
) -> None:
    """It cannot give its job back: when Redis is there again, its lease lapses, and no more."""
    job = toy_job(phase="gated", num_inference_steps=50)
    settings = QueueSettings(lease_s=2, reap_every_s=0.1)
    with embedded(tmp_path) as url:
        queue = await Queue.connect(url, settings)
        await queue.put(job)
        at = at_work(pipeline, layout, queue, store, drain_s=1)
        pool, task = await at.__aenter__()
        await asyncio.to_thread(pipeline.gate.wait)
        async with Redis.from_url(url) as redis:
            os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)
    pool.stop()
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


def test_settings_that_lack_something_are_told() -> None:
    with pytest.raises(ConfigError, match=r"pools\.x"):
        run_pool(Settings(), "x")
    with pytest.raises(ConfigError, match=r"models\.y"):
        run_pool(Settings(pools={"x": {"model": "y"}}), "x")
    settings = Settings(pools={"x": {"model": "y"}}, models={"y": {"source": "z"}})
    with pytest.raises(ConfigError, match=r"redis\.url"):
        run_pool(settings, "x")
