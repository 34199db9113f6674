"""Worker process that serves several checkpoints of one base, with jobs of all side by side."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models import registry
from models.interface.pipeline import generate
from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from tests.workers.flux import REQUEST, tuned
from tests.workers.jobs import ended, pixels, reached
from tests.workers.polling import until
from tests.workers.pool.test_process import ENDLESS, toml
from tests.workers.pool_process import START_S, PoolProcess

MODELS = ("flux", "tuned")


@pytest.fixture(scope="module")
def folders(flux_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tuned") / "tuned"
    return dict(zip(MODELS, (flux_folder, tuned(flux_folder, folder)), strict=True))


@pytest.fixture
def pool(
    folders: dict[str, Path],
    redis_url: str,
    empty_redis: object,
    state_dir: Path,
    tmp_path: Path,
) -> Iterator[PoolProcess]:
    size = {name: REQUEST[name] for name in ("width", "height", "max_sequence_length")}
    sections = {
        "": {"state_dir": str(state_dir)},
        "redis": {"url": redis_url},
        "queue": {"lease_s": 3},
        "pools.flux": {"model": "flux", "also": ["tuned"], "slots": 2},
        **{
            f"models.{name}": {"source": str(folder), "dtype": "float32", "defaults": size}
            for name, folder in folders.items()
        },
    }
    file = tmp_path / "atelier.toml"
    file.write_text("".join(toml(name, values) for name, values in sections.items()))
    process = PoolProcess(file, tmp_path / "pool.log")
    yield process
    process.end()


async def put(queue: Queue, model: str, seed: int, steps: int = 4) -> Job:
    request = {
        **REQUEST,
        "seed": seed,
        "num_inference_steps": steps,
        "output": {"format": "png"},
    }
    job = Job(id=new_job_id(), model=model, bucket="one", request=request, steps=steps)
    await queue.put(job)
    return job


async def test_a_pool_of_two_models_makes_the_jobs_of_both(
    pool: PoolProcess, redis_url: str, folders: dict[str, Path], state_dir: Path
) -> None:
    queue = await Queue.connect(redis_url, QueueSettings(lease_s=3))
    store = Store(str(state_dir / "outputs"))
    for model in MODELS:
        await queue_has(queue, model, pool)
    pairs = [(model, seed) for seed in range(3) for model in MODELS]
    jobs = await asyncio.gather(*(put(queue, model, seed) for model, seed in pairs))
    images = {}
    for (model, seed), job in zip(pairs, jobs, strict=True):
        (images[model, seed],) = await pixels(store, await ended(queue, job))
    for model in MODELS:
        alone = registry.load(model, str(folders[model]), "float32", {})
        fields = {**alone.spec.defaults, **REQUEST, "seed": 2, "num_inference_steps": 4}
        levels = np.abs(images[model, 2].astype(int) - generate(alone, fields, {}))
        assert levels.max() <= 2, "coarsely compiled programs round otherwise"
    assert np.ptp(images["flux", 0].astype(int) - images["tuned", 0]) > 10

    endless = [await put(queue, model, 1, ENDLESS) for model in MODELS]
    for job in endless:
        await reached(queue, job, JobState.RUNNING)
    pool.send(signal.SIGTERM)
    assert await pool.exit_code() == 0
    for job in endless:
        queued = await queue.get(job.id)
        assert queued
        assert (queued.state, queued.attempts) == (JobState.QUEUED, 0)
    assert not any(status.pools for status in (await queue.models()).values())
    await queue.close()


async def queue_has(queue: Queue, model: str, pool: PoolProcess) -> None:
    """Wait until a ready worker of that model is registered."""
    await pool.ready()

    async def is_there() -> bool:
        status = (await queue.models()).get(model)
        return bool(status and status.pools)

    await until(is_there, START_S)
