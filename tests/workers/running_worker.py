"""Worker of the toy model in the test's process, at the real queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from models.interface.pipeline import Fields
from models.parallel.axis_rules import Layout
from models.upscale.load import LoadedUpscaler
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from tests.workers.polling import DEADLINE_S
from tests.workers.toy import SPEC, ToyPipeline
from workers.engine.engine import Engine
from workers.health.liveness import Liveness
from workers.loading.upscalers import with_upscalers
from workers.pool.job_context import OutputCheck, no_check
from workers.pool.worker import Worker, WorkerOptions, WorkerParts
from workers.programs.batch_sizes import BatchSizes

LEASE_S = 3.0


@asynccontextmanager
async def at_work(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    store: Store,
    warmup: Fields = MappingProxyType({}),
    lease_s: float = LEASE_S,
    batching: BatchSizes | None = None,
    check: OutputCheck = no_check,
    upscalers: Mapping[str, LoadedUpscaler] | None = None,
    expected_s: Sequence[float] = (),
    liveness: Liveness | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Worker, asyncio.Task[int]]]:
    """Run a worker and yield it with its task. It has ended when the context exits.

    Args:
        lease_s: Duration of the worker's leases, by which it renews them.
        expected_s: Estimated seconds of each warm-up request's trial.
    """
    pool_settings = PoolSettings(
        **{"model": SPEC.name, "slots": 4, "preview_every_s": 0, **settings}
    )
    if upscalers:
        specs = {name: upscaler.spec for name, upscaler in upscalers.items()}
        pipeline.spec = with_upscalers(pipeline.spec, specs)
    engine = Engine(pipeline, layout, pool_settings.slots, batching, upscalers=upscalers)
    parts = WorkerParts(engine, queue, store)
    options = WorkerOptions(check=check, liveness=liveness or Liveness())
    worker = Worker("toy", parts, pool_settings, lease_s, options)
    task = asyncio.create_task(worker.run([warmup], expected_s))
    try:
        yield worker, task
        worker.stop_now()
        pipeline.gate.open()
        await asyncio.wait_for(task, DEADLINE_S)
        assert worker._capacity.is_unused, "a job that has left holds a slot"
    finally:
        pipeline.gate.open()
        pipeline.compile_gate.set()
        task.cancel()
        engine.close()


async def status(queue: Queue) -> tuple[int, bool]:
    """Return the number of workers that serve the toy model, and whether it is ready."""
    models = await queue.models()
    return (len(models[SPEC.name].pools), models[SPEC.name].ready) if models else (0, False)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def has(queue: Queue, expected: tuple[int, bool]) -> bool:
    return await status(queue) == expected


async def has_step(queue: Queue, job_id: str, step: int) -> bool:
    return (await queue.get(job_id)).step >= step


async def swept(queue: Queue, store: Store) -> bool:
    """Delete ended jobs' files as the front end does. Return whether none is left."""
    files = await queue.reap()
    await store.delete(files)
    return not await queue.reap(files)
