"""How long short jobs wait behind a long video of low priority: `python -m tests.load.preemption`.

A pool of one slot serves the demo model of videos, in this process, at an embedded Redis. A video
of 17 frames and very many steps runs; jobs of five frames, the fewest that this model makes, come
every few seconds: once with a video that may be put aside for them, once with one that may not.
Prints how long they took from being put to their end, how often the video was put aside, and how
long it took in all.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import jax

import models.demo
from deploy.local.embedded_redis import embedded
from models import registry
from models.interface.pipeline import Pipeline
from service.jobs.model.job import PRIORITIES, Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from service.settings.queue import QueueSettings
from tests.workers.polling import until
from workers.engine.engine import Engine
from workers.pool.worker import Worker
from workers.programs import warmup
from workers.slice.mesh import one_device

MODEL = "wan-demo"
FRAMES = {"short": 5, "clip": 17}


class Bench:
    """One pool at one queue."""

    def __init__(self, queue: Queue, pipeline: Pipeline) -> None:
        self._queue = queue
        self._spec = pipeline.spec

    async def put(self, kind: str, steps: int, priority: str) -> Job:
        """As the front end does, with its predicted costs."""
        wanted = {"num_frames": FRAMES[kind], "num_inference_steps": steps}
        (request,) = warmup.requests(self._spec, [{"prompt": "a red circle", **wanted}])
        request = {**request, "output": {"format": "png" if kind == "short" else "mp4"}}
        bucket = self._spec.bucket(request)
        cost = (await self._queue.costs(MODEL)).predict(bucket, steps, 1)
        assert cost is not None
        job = Job(
            id=new_job_id(), model=MODEL, bucket=bucket, request=dict(request), steps=steps,
            priority=PRIORITIES[priority], cost=cost.device_seconds, run_s=cost.seconds,
        )  # fmt: skip
        return (await self._queue.put(job))[0]

    async def until_ready(self) -> None:
        async def is_ready() -> bool:
            return any(status.ready for status in (await self._queue.models()).values())

        await until(is_ready)

    async def ended(self, job: Job) -> Job:
        async for _ in self._queue.events(job.id):
            pass  # until the last one
        job = await self._queue.get(job.id) or job
        assert job.state is JobState.SUCCEEDED, job.error
        return job

    async def times_aside(self, job: Job) -> int:
        return [event.name async for event in self._queue.events(job.id)].count("queued") - 1


async def trial(bench: Bench, steps: int, count: int, every_s: float) -> str:
    """One video, and what comes while it runs."""
    clip = await bench.put("clip", steps, "low")
    jobs = []
    for _ in range(count):
        await asyncio.sleep(every_s)
        jobs.append(await bench.put("short", 20, "normal"))
    ends = [await bench.ended(job) for job in jobs]
    clip = await bench.ended(clip)
    took = [(job.finished_at or 0) - job.created_at for job in ends]
    clip_took = (clip.finished_at or 0) - clip.created_at
    return (
        f"{count} short ones took {min(took):.1f} to {max(took):.1f} s, "
        f"median {statistics.median(took):.1f} s; the video of {steps} steps {clip_took:.1f} s, "
        f"put aside {await bench.times_aside(clip)} times"
    )


async def measure(url: str, quantum_s: float, options: argparse.Namespace) -> str:
    queue = await Queue.connect(url, QueueSettings())
    source = Path(models.demo.__file__).parent / "wan"
    pipeline = registry.load(MODEL, str(source), "float32", {})
    settings = PoolSettings(model=MODEL, slots=1, quantum_s=quantum_s, preview_every_s=0)
    engine = Engine(pipeline, one_device(jax.devices()[0]), slots=1)
    pool = Worker("bench", engine, queue, Store("memory://"), settings, QueueSettings().lease_s)
    kinds: list[dict[str, Any]] = [{"num_frames": frames} for frames in FRAMES.values()]
    serving = asyncio.create_task(pool.run(warmup.requests(pipeline.spec, kinds)))
    bench = Bench(queue, pipeline)
    await bench.until_ready()
    said = await trial(bench, options.steps, options.short, options.every_s)
    pool.stop()
    await serving
    engine.close()
    await queue.close()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--short", type=int, default=5)
    parser.add_argument("--every-s", type=float, default=7)
    options = parser.parse_args()
    for quantum_s in (math.inf, PoolSettings(model=MODEL).quantum_s):
        with tempfile.TemporaryDirectory() as folder, embedded(Path(folder)) as url:
            said = asyncio.run(measure(url, quantum_s, options))
            print(f"quantum {quantum_s:g} s: {said}", flush=True)


if __name__ == "__main__":
    main()
