"""Process that serves models of two families in turn: their images, and a kill during a swap."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import registry
from models.interface.pipeline import generate
from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from tests.families.suite import SUITE
from tests.workers.jobs import ended, pixels, reached
from tests.workers.polling import until
from tests.workers.pool.test_process import ENDLESS, toml
from tests.workers.pool.test_several import queue_has
from tests.workers.pool_process import PoolProcess
from tests.workers.running_worker import has_step

LEASE_S = 3
REQUESTS = {name: SUITE[name].smallest_request for name in ("flux", "sdxl")}


@pytest.fixture(scope="module")
def folders(flux_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"flux": flux_folder, "sdxl": SUITE["sdxl"].least(tmp_path_factory.mktemp("sdxl"))}


@pytest.fixture
def start(
    folders: dict[str, Path], redis_url: str, empty_redis: object, state_dir: Path, tmp_path: Path
) -> Iterator[Callable[[], PoolProcess]]:
    sizes = ("width", "height", "max_sequence_length")
    sections: dict[str, dict[str, Any]] = {
        "": {"state_dir": str(state_dir)},
        "redis": {"url": redis_url},
        "queue": {"lease_s": LEASE_S, "reap_every_s": 0.2},
        "pools.flux": {
            "model": "flux", "by_turns": ["sdxl"], "slots": 2, "turn_s": 1, "quantum_s": 0.5,
            "snapshot_share": 0.5,
        },
        **{
            f"models.{name}": {
                "source": str(folder),
                "dtype": "float32",
                "defaults": {key: REQUESTS[name][key] for key in sizes if key in REQUESTS[name]},
            }
            for name, folder in folders.items()
        },
    }  # fmt: skip
    file = tmp_path / "atelier.toml"
    file.write_text("".join(toml(name, values) for name, values in sections.items()))
    started: list[PoolProcess] = []

    def start() -> PoolProcess:
        started.append(PoolProcess(file, tmp_path / f"pool-{len(started)}.log"))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    queue = await Queue.connect(redis_url, QueueSettings(lease_s=LEASE_S, reap_every_s=0.2))
    yield queue
    await queue.close()


async def put(queue: Queue, model: str, seed: int = 0, steps: int = 3) -> Job:
    request = {
        **REQUESTS[model],
        "seed": seed,
        "num_inference_steps": steps,
        "output": {"format": "png"},
    }
    job = Job(id=new_job_id(), model=model, bucket="one", request=request, steps=steps)
    await queue.put(job)
    return job


@pytest.mark.timeout(900)  # two starts, and both pipelines compiled once more without a worker
async def test_two_time_shared_families_match_separate_ones(
    start: Callable[[], PoolProcess], queue: Queue, folders: dict[str, Path], state_dir: Path
) -> None:
    pool, store = start(), Store(str(state_dir / "outputs"))
    for model in REQUESTS:
        await queue_has(queue, model, pool)
    jobs = [await put(queue, model, seed) for seed in range(2) for model in REQUESTS]
    done = [await ended(queue, job) for job in jobs]
    assert pool.said.count("sdxl is on the devices") >= 1
    assert pool.said.count("flux is on the devices") >= 2, "once to warm up"
    for job in done[:2]:
        (actual,) = await pixels(store, job)
        alone = registry.load(job.model, str(folders[job.model]), "float32", {})
        image = generate(alone, {**alone.spec.defaults, **job.request}, {})
        levels = np.abs(actual.astype(int) - image)
        assert levels.max() <= 2, "coarsely compiled programs round otherwise"


async def test_long_job_is_preempted_and_resumes(
    start: Callable[[], PoolProcess], queue: Queue
) -> None:
    pool = start()
    for model in REQUESTS:
        await queue_has(queue, model, pool)
    long = await put(queue, "flux", steps=ENDLESS)
    await until(lambda: has_step(queue, long.id, 3))
    assert (await ended(queue, await put(queue, "sdxl"))).state is JobState.SUCCEEDED
    suspended = await queue.get(long.id)
    assert suspended is not None and suspended.step >= 3
    await until(lambda: has_step(queue, long.id, suspended.step + 1))
    again = await queue.get(long.id)
    assert again is not None and again.attempts == 1 and not again.deaths
    await queue.cancel(long.id)
    pool.send(signal.SIGTERM)
    assert await pool.exit_code() == 0


async def test_kill_during_a_swap_loses_no_job(
    start: Callable[[], PoolProcess], queue: Queue, state_dir: Path
) -> None:
    pool, store = start(), Store(str(state_dir / "outputs"))
    for model in REQUESTS:
        await queue_has(queue, model, pool)
    long = await put(queue, "flux", steps=60_000)
    await until(lambda: has_step(queue, long.id, 3))
    other = await put(queue, "sdxl")
    suspended = await reached(queue, long, JobState.QUEUED)
    pool.send(signal.SIGKILL)
    assert await pool.exit_code() == -signal.SIGKILL
    assert suspended.step >= 3 and suspended.attempts == 0
    again, reaping = start(), asyncio.create_task(reap(queue, store))
    try:
        await again.ready()
        assert (await ended(queue, other)).state is JobState.SUCCEEDED
        await until(lambda: has_step(queue, long.id, suspended.step + 1))
        resumed = await queue.get(long.id)
        assert resumed is not None and resumed.state is JobState.RUNNING and not resumed.deaths
    finally:
        reaping.cancel()


async def reap(queue: Queue, store: Store) -> None:
    """Reap the queue repeatedly, as the front end does."""
    while True:
        await store.delete(await queue.reap())
        await asyncio.sleep(0.2)
