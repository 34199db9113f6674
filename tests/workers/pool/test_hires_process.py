"""Worker process that is killed in the first or in the second pass of hires fix."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from tests.workers.flux import REQUEST
from tests.workers.jobs import ended, lapsed
from tests.workers.paced import held
from tests.workers.polling import until
from tests.workers.pool.test_process import SETTINGS, toml
from tests.workers.pool_process import PoolProcess

FIRST, SECOND, SIDE = 24, 40, 32
"""Steps of each pass, and the side of the first pass's image."""
CONFIG = "atelier.toml"


@pytest.fixture
def pools(
    tmp_path: Path, redis_url: str, flux_folder: Path, state_dir: Path
) -> Iterator[list[PoolProcess]]:
    """Start three worker processes, one of which survives the test."""
    warmup = {"width": SIDE, "height": SIDE, "max_sequence_length": REQUEST["max_sequence_length"]}
    sections = {
        "": {"state_dir": str(state_dir)},
        "redis": {"url": redis_url},
        "queue": {"lease_s": SETTINGS.lease_s},
        "models.flux": {"source": str(flux_folder), "dtype": "float32", "defaults": warmup},
        "pools.flux": {"model": "flux", "slots": 1},
    }
    config = tmp_path / CONFIG
    config.write_text("".join(toml(name, values) for name, values in sections.items()))
    started = [PoolProcess(config, tmp_path / f"pool-{number}.log") for number in range(3)]
    yield [*started]
    for pool in started:
        pool.end()


async def put(queue: Queue) -> Job:
    hires = {
        "width": 2 * SIDE,
        "height": 2 * SIDE,
        "upscaler": "latent",
        "strength": 1.0,
        "num_inference_steps": SECOND,
    }
    size = {"width": SIDE, "height": SIDE, "num_inference_steps": FIRST}
    request = {**REQUEST, **size, "hires": hires, "output": {"format": "png"}}
    job = Job(id=new_job_id(), model="flux", bucket="one", request=request, steps=FIRST + SECOND)
    await queue.put(job)
    return job


async def is_kept_in(queue: Queue, job: Job, second: bool) -> bool:
    """Return whether a snapshot was taken in that pass."""
    now = await queue.get(job.id)
    if now is None or not now.snapshots:
        return False
    step = now.snapshots[0].step
    return step > FIRST if second else step > 0


@pytest.mark.timeout(900)
async def test_another_worker_resumes_in_the_interrupted_pass(
    pools: list[PoolProcess], queue: Queue, tmp_path: Path
) -> None:
    """Killed once in each pass, the job has the pixels of an undisturbed job."""
    for pool in pools:
        await pool.ready()
    undisturbed = await ended(queue, await put(queue))
    assert undisturbed.state == JobState.SUCCEEDED, undisturbed.error
    assert (undisturbed.step, undisturbed.usage.steps) == (FIRST + SECOND, FIRST + SECOND)
    assert [(output.width, output.height) for output in undisturbed.outputs] == [
        (2 * SIDE, 2 * SIDE)
    ]
    for second in (False, True):
        with held(tmp_path / CONFIG, FIRST + SECOND // 2 if second else FIRST // 2):
            job = await put(queue)
            await until(lambda job=job, second=second: is_kept_in(queue, job, second))
            now = await queue.get(job.id)
            assert now is not None
            victim = next(pool for pool in pools if f"pool {now.pool} is ready" in pool.said)
            victim.send(signal.SIGKILL)
        pools.remove(victim)
        await lapsed(queue, job)
        job = await ended(queue, job)
        assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2), job.error
        lines = [line for pool in pools for line in pool.said.splitlines()]
        [line] = [line for line in lines if f"of {job.id} resumes after step" in line]
        assert (int(line.split()[-1]) > FIRST) == second
        assert [output.pixels_sha256 for output in job.outputs] == [
            output.pixels_sha256 for output in undisturbed.outputs
        ]
