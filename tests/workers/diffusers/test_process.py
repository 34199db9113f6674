"""Worker process of a diffusers model, which `auto` selects, and its drain."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.spec.model_spec import ModelSpec
from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from tests.workers.diffusers.test_worker import job_of
from tests.workers.jobs import reached
from tests.workers.polling import until
from tests.workers.pool.test_process import toml
from tests.workers.pool_process import PoolProcess

MAIN = """
import logging, sys
from service.settings.settings import Settings
from workers.pool.process import run_pool
logging.basicConfig(level=logging.INFO)
sys.exit(run_pool(Settings(), sys.argv[1]))
"""
LONG = 900
"""Steps of a job that outlives a signal."""


@pytest.fixture
def start(
    tmp_path: Path, redis_url: str, stable_diffusion: Path, state_dir: Path
) -> Iterator[Callable[[], PoolProcess]]:
    sections = {
        "": {"state_dir": str(state_dir)},
        "redis": {"url": redis_url},
        "queue": {"lease_s": 3600},
        "models.sd": {"source": str(stable_diffusion), "dtype": "float32"},
        "pools.sd": {"model": "sd", "drain_s": 20},
    }
    config = tmp_path / "atelier.toml"
    config.write_text("".join(toml(name, values) for name, values in sections.items()))
    started: list[PoolProcess] = []

    def start() -> PoolProcess:
        log = tmp_path / f"pool-{len(started)}.log"
        started.append(PoolProcess(config, log, "sd", MAIN))
        return started[-1]

    yield start
    for pool in started:
        pool.end()


async def spec_of(queue: Queue) -> ModelSpec:
    return (await queue.models())["sd"].spec


async def running(queue: Queue, job: Job) -> None:
    """Put a job, and wait until it has done a step."""
    await queue.put(job)

    async def has_step() -> bool:
        return (await queue.get(job.id)).step > 0

    await until(has_step)


async def test_a_drained_worker_releases_its_job(
    start: Callable[[], PoolProcess], queue: Queue
) -> None:
    pool = start()
    await pool.ready()
    job = job_of(await spec_of(queue), num_inference_steps=LONG, num_images=4)
    await running(queue, job)
    pool.send(signal.SIGTERM)
    assert await pool.exit_code() == 0
    job = await reached(queue, job, JobState.QUEUED)
    assert not job.deaths
