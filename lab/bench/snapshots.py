"""Cost of snapshots, each and per job. Not a test: run it on a quiet machine.

    python -m lab.bench.snapshots [--store FOLDER] [--share 0.01] [--rounds 5]

Runs the demo Flux and Wan in pools with a real queue and store. Prints the bytes and time of a
snapshot (copy from the device, file, store), their number per job, their share of the steps' time,
and the steps' time with and without them. Jobs have enough steps for snapshots to be taken.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import jax
from prometheus_client import REGISTRY

import models.demo
from deploy.local.embedded_redis import embedded
from models import registry
from models.interface.pipeline import Pipeline
from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from service.settings.queue import QueueSettings
from tests.workers.observing import Observing
from workers.engine.engine import Engine
from workers.engine.row import Row
from workers.engine.snapshot import Origin, to_bytes
from workers.pool.worker import Worker, WorkerParts
from workers.programs.xla_cache import use_compile_cache
from workers.slice.mesh import one_device

DEMO = Path(models.demo.__file__).parent
STEPS = {"flux": 2000, "wan": 2000}
POLL_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", help="a folder or an address; left out: a temporary folder")
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        use_compile_cache(Path(folder) / "compiled")
        with embedded(Path(folder)) as url:
            for name in STEPS:
                asyncio.run(measure(name, options, url, options.store or f"{folder}/store"))


async def measure(name: str, options: argparse.Namespace, url: str, store: str) -> None:
    pipeline = registry.load(name, str(DEMO / name), "float32", {})
    queue = await Queue.connect(url, QueueSettings())
    shares = (0.0, options.share)
    seconds: dict[float, list[float]] = {share: [] for share in shares}
    await state_of(name, pipeline)
    for _ in range(options.rounds):
        for share in shares:
            async with at_work(pipeline, queue, Store(store), share):
                seconds[share].append(await one_job(queue, pipeline))
    without, with_them = (median(seconds[share]) for share in shares)
    snapshots, cost = (counter(metric, name) for metric in COUNTERS)
    share = cost / sum(seconds[options.share])
    print(
        f"{name}: {snapshots / options.rounds:.1f} snapshots a job of {STEPS[name]} steps,"
        f" {cost / max(1, snapshots) * 1e3:.1f} ms each, {share:.2%} of the steps' time;"
        f" a job's steps took {without:.2f} device-seconds without and {with_them:.2f} with them"
        f" ({with_them / without - 1:+.1%}; medians of {options.rounds},"
        f" spread without them {(max(seconds[0.0]) - min(seconds[0.0])) / without:.1%})",
        flush=True,
    )
    await queue.close()


COUNTERS = ("atelier_snapshots_total", "atelier_snapshot_seconds_total")


def counter(what: str, model: str) -> float:
    return REGISTRY.get_sample_value(what, {"model": model}) or 0.0


async def state_of(name: str, pipeline: Pipeline) -> None:
    """Print the parts of a snapshot."""
    engine = Engine(pipeline, one_device(jax.devices()[0]), slots=1)
    rows: list[Row] = []
    await engine.generate(request(pipeline, 4), {}, Observing(rows.append))
    snapshot = await engine.take_snapshot(rows[-1])
    sizes = ", ".join(f"{leaf} {array.nbytes / 1e6:.3f}" for leaf, array in snapshot.leaves.items())
    file = to_bytes(snapshot, Origin.of(pipeline.spec.fingerprint, {}, engine.batching))
    print(f"{name}: {len(file) / 1e6:.3f} MB: {sizes}", flush=True)
    engine.close()


def request(pipeline: Pipeline, steps: int) -> dict[str, Any]:
    defaults = pipeline.spec.defaults_for(pipeline.spec.tasks[0])
    chosen = {"prompt": "a red circle", "seed": 1, "num_images": 1, "num_inference_steps": steps}
    return {**defaults, **chosen}


@asynccontextmanager
async def at_work(
    pipeline: Pipeline, queue: Queue, store: Store, share: float
) -> AsyncIterator[None]:
    settings = PoolSettings(
        model=pipeline.spec.name, slots=1, preview_every_s=0, snapshot_share=share
    )
    engine = Engine(pipeline, one_device(jax.devices()[0]), slots=1)
    pool = Worker("bench", WorkerParts(engine, queue, store), settings, QueueSettings().lease_s)
    task = asyncio.create_task(pool.run([request(pipeline, 4)]))
    try:
        yield
    finally:
        pool.stop_now()
        await task
        engine.close()


async def one_job(queue: Queue, pipeline: Pipeline) -> float:
    """Run a job; returns the device-seconds of its steps."""
    name = pipeline.spec.name
    fields = request(pipeline, STEPS[name]) | {"output": {"format": "png"}}
    job = Job(id=new_job_id(), model=name, bucket="one", request=fields, steps=STEPS[name])
    await queue.put(job)
    while not job.state.ended:
        await asyncio.sleep(POLL_S)
        job = await queue.get(job.id) or job
    assert job.state is JobState.SUCCEEDED, job.error
    return job.usage.device_seconds


if __name__ == "__main__":
    main()
