"""Waits of short jobs while a long, low-priority video runs: `python -m lab.load.preemption`.

A pool with one slot serves the demo's video model in this process, with an embedded Redis. A video
of 17 frames with many steps runs while jobs of five frames, the model's minimum, arrive every few
seconds: once with preemption and once without. Prints the short jobs' durations, how often the
video was preempted, and its total duration.
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
from workers.pool.worker import Worker, WorkerParts
from workers.programs import warmup
from workers.slice.mesh import one_device

MODEL = "wan-demo"
FRAMES = {"short": 5, "clip": 17}


class Bench:
    """A queue with one pool."""

    def __init__(self, queue: Queue, pipeline: Pipeline) -> None:
        self._queue = queue
        self._spec = pipeline.spec

    async def put(self, kind: str, steps: int, priority: str) -> Job:
        """Submit a job with predicted costs, like the front end."""
        sizes = {"num_frames": FRAMES[kind], "num_inference_steps": steps}
        (request,) = warmup.requests(self._spec, [{"prompt": "a red circle", **sizes}])
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
            pass  # until the last event
        job = await self._queue.get(job.id) or job
        assert job.state is JobState.SUCCEEDED, job.error
        return job

    async def preemptions(self, job: Job) -> int:
        return [event.name async for event in self._queue.events(job.id)].count("queued") - 1


async def trial(bench: Bench, steps: int, count: int, every_s: float) -> str:
    """Run a video, and short jobs during it."""
    video = await bench.put("clip", steps, "low")
    jobs = []
    for _ in range(count):
        await asyncio.sleep(every_s)
        jobs.append(await bench.put("short", 20, "normal"))
    ends = [await bench.ended(job) for job in jobs]
    video = await bench.ended(video)
    times_s = [(job.finished_at or 0) - job.created_at for job in ends]
    video_s = (video.finished_at or 0) - video.created_at
    return (
        f"{count} short ones took {min(times_s):.1f} to {max(times_s):.1f} s, "
        f"median {statistics.median(times_s):.1f} s; the video of {steps} steps {video_s:.1f} s, "
        f"preempted {await bench.preemptions(video)} times"
    )


async def measure(url: str, quantum_s: float, options: argparse.Namespace) -> str:
    queue = await Queue.connect(url, QueueSettings())
    source = Path(models.demo.__file__).parent / "wan"
    pipeline = registry.load(MODEL, str(source), "float32", {})
    settings = PoolSettings(model=MODEL, slots=1, quantum_s=quantum_s, preview_every_s=0)
    engine = Engine(pipeline, one_device(jax.devices()[0]), slots=1)
    pool = Worker(
        "bench", WorkerParts(engine, queue, Store("memory://")), settings, QueueSettings().lease_s
    )
    kinds: list[dict[str, Any]] = [{"num_frames": frames} for frames in FRAMES.values()]
    serving = asyncio.create_task(pool.run(warmup.requests(pipeline.spec, kinds)))
    bench = Bench(queue, pipeline)
    await bench.until_ready()
    text = await trial(bench, options.steps, options.short, options.every_s)
    pool.stop()
    await serving
    engine.close()
    await queue.close()
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--short", type=int, default=5)
    parser.add_argument("--every-s", type=float, default=7)
    options = parser.parse_args()
    for quantum_s in (math.inf, PoolSettings(model=MODEL).quantum_s):
        with tempfile.TemporaryDirectory() as folder, embedded(Path(folder)) as url:
            text = asyncio.run(measure(url, quantum_s, options))
            print(f"quantum {quantum_s:g} s: {text}", flush=True)


if __name__ == "__main__":
    main()
