"""Time of compilation: known in advance, reported, and charged to the first job that needs it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models.parallel.axis_rules import Layout
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.workers.jobs import ended, toy_job
from tests.workers.polling import until
from tests.workers.running_worker import at_work
from tests.workers.toy import SPEC, ToyPipeline
from workers.engine.engine import Engine
from workers.engine.request_programs import LOOKUP_EVERY_S
from workers.programs.aot_cache import ExecutableFiles
from workers.programs.batch_sizes import exact, fast
from workers.programs.compilation import Compilation, building, compile_threads

WARM: dict[str, Any] = {"width": 32, "height": 16}
NEW: dict[str, Any] = {"width": 48, "height": 16}


async def test_job_that_waits_for_a_compilation_is_charged(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(**NEW, phase="slow-to-compile")

    async def compiles() -> bool:
        current = await queue.get(job.id)
        return current is not None and current.detail is not None

    async with at_work(pipeline, layout, queue, store, WARM) as (worker, _):
        await queue.put(job)
        await until(compiles)
        detail = (await queue.get(job.id)).detail
        assert detail.stage == "compiling"
        assert detail.expected_s == pytest.approx(worker.engine.costs.expected_s(job.bucket))  # type: ignore[attr-defined]
        neighbour = await finished(queue, toy_job(**WARM))
        assert neighbour.usage.compile_seconds == 0, "it waits for nobody's compiler"
        pipeline.compile_gate.set()
        first = await ended(queue, job)
        second = await finished(queue, toy_job(**NEW, phase="slow-to-compile"))
        assert first.state is JobState.SUCCEEDED and first.detail is None
        assert 0 < first.usage.compile_seconds < first.usage.device_seconds
        assert second.usage.compile_seconds == 0
        await until(
            lambda: job.bucket in worker.engine.costs.available
        )  # when all sizes are compiled
    stages = [
        event.data["detail"]["stage"]
        async for event in queue.events(job.id)
        if event.name == "progress"
    ]
    assert list(dict.fromkeys(stages))[:2] == ["compiling", "denoising"]


async def finished(queue: Queue, job: Any) -> Any:
    await queue.put(job)
    return await ended(queue, job)


async def test_next_start_reads_which_programs_are_stored(
    pipeline: ToyPipeline, layout: Layout, tmp_path: Path
) -> None:
    bucket = SPEC.bucket(WARM)

    def start() -> Engine:
        return Engine(pipeline, layout, slots=1, executables=ExecutableFiles(tmp_path, {}))

    first, again = start(), start()
    try:
        await first.readiness.warm_up([WARM])
        took_s = first.costs.expected_s(bucket)
        assert took_s and took_s > 0

        await until(partial(is_found, again, bucket, "another"))
        assert again.costs.stored_compile_s == {bucket: took_s}
        assert again.costs.available == (bucket,)
        assert again.costs.expected_s("another") == took_s, "as others of the model"
    finally:
        first.close()
        again.close()


async def is_found(engine: Engine, *buckets: str) -> bool:
    """Look for executables again, as if the time before another look had passed."""
    engine._machinery.programs._next_lookup_at.clear()
    await engine.readiness.find_stored(buckets)
    return bool(engine.costs.stored_compile_s)


async def test_new_executable_file_is_noticed_later(
    pipeline: ToyPipeline, layout: Layout, tmp_path: Path
) -> None:
    bucket, loop = SPEC.bucket(WARM), asyncio.get_running_loop()
    first, second = (
        Engine(pipeline, layout, slots=1, executables=ExecutableFiles(tmp_path, {}))
        for _ in range(2)
    )
    try:
        await second.readiness.find_stored([bucket])
        assert not second.costs.stored_compile_s
        await first.readiness.warm_up([WARM])
        assert (
            0 < second._machinery.programs._next_lookup_at[bucket] - loop.time() <= LOOKUP_EVERY_S
        )
        await until(partial(is_found, second, bucket))
    finally:
        first.close()
        second.close()


async def test_programs_of_other_batchings_are_not_reused(
    pipeline: ToyPipeline, layout: Layout, tmp_path: Path
) -> None:
    """After a change of `batching` or `exact_rows`, all steps must be compiled."""
    bucket, files = SPEC.bucket(WARM), ExecutableFiles(tmp_path, {})
    batchings = (exact(), exact(), exact(2), fast(2))
    first, *engines = (
        Engine(pipeline, layout, 2, batching, executables=files) for batching in batchings
    )
    try:
        await first.readiness.warm_up([WARM])
        await until(partial(is_found, engines[0], bucket))
        assert [await is_found(engine, bucket) for engine in engines] == [True, False, False]
    finally:
        for engine in (first, *engines):
            engine.close()


def test_pending_larger_batches_are_charged() -> None:
    compilation = Compilation(optional=2)
    with compilation.making(is_optional=False), building():
        pass
    first_s = compilation.charge_s
    assert first_s > 0
    assert compilation.take() and not compilation.take()
    assert compilation.can_begin() is not None and compilation.can_begin() is None
    assert compilation.charge_s == first_s
    with compilation.making(is_optional=True):
        pass
    assert compilation.charge_s == first_s * 2 / 3, "what was read from a file costs nothing"


def test_compile_threads_depend_on_the_cores() -> None:
    assert [compile_threads(cores) for cores in (1, 2, 8, 12, 44, 208)] == [2, 2, 2, 3, 4, 4]


def test_stored_programs_are_not_charged() -> None:
    events: list[str] = []
    compilation = Compilation(optional=1)
    compilation.on_begin(lambda: events.append("compiling"))
    for is_optional in (False, True):
        with compilation.making(is_optional):
            pass
    assert (compilation.charge_s, compilation.can_begin(), events) == (0, None, [])


async def test_compiling_job_frees_its_slot(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """There is one slot. A job with compiled programs runs while two others wait for theirs."""
    waiting = [toy_job(width=width, phase="slow-to-compile") for width in (40, 48)]

    async def compiles() -> bool:
        current = [await queue.get(job.id) for job in waiting]
        return any(job is not None and job.detail is not None for job in current)

    async with at_work(pipeline, layout, queue, store, WARM, slots=1):
        for job in waiting:
            await queue.put(job)
        await until(compiles)
        for _ in range(2):
            assert (await finished(queue, toy_job(**WARM))).state is JobState.SUCCEEDED
        states = sorted([(await queue.get(job.id)).state for job in waiting])
        assert states == [JobState.QUEUED, JobState.RUNNING]
        pipeline.compile_gate.set()
        for job in waiting:
            assert (await ended(queue, job)).state is JobState.SUCCEEDED
