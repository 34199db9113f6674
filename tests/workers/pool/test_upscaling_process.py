"""Worker process with an upscaler of the settings, killed while it upscales an image."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.upscale.config import RrdbConfig
from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from tests.parity.torch_rrdbnet import net, write
from tests.workers.flux import REQUEST
from tests.workers.jobs import ended, lapsed
from tests.workers.paced import held
from tests.workers.polling import until
from tests.workers.pool.test_process import SETTINGS, toml
from tests.workers.pool_process import PoolProcess

SMALL = RrdbConfig(blocks=2, features=16, growth=8, doublings=2, unshuffle=1)
STEPS, SIDE, TILE = 8, 192, 32
"""Steps, and sides of an image and of its tiles. An image has dozens of tiles."""
CONFIG = "atelier.toml"


@pytest.fixture
def pools(
    tmp_path: Path, redis_url: str, flux_folder: Path, state_dir: Path
) -> Iterator[list[PoolProcess]]:
    """Start two worker processes, the second of which takes over."""
    file = write(net(SMALL), tmp_path / "large.safetensors")
    warmup = {"width": SIDE, "height": SIDE, "max_sequence_length": REQUEST["max_sequence_length"]}
    sections = {
        "": {"state_dir": str(state_dir)},
        "redis": {"url": redis_url},
        "queue": {"lease_s": SETTINGS.lease_s},
        "models.flux": {"source": str(flux_folder), "dtype": "float32", "defaults": warmup},
        "pools.flux": {"model": "flux", "slots": 1},
        "upscalers.large": {"source": str(file), "tile": TILE, "models": ["flux"]},
    }
    config = tmp_path / CONFIG
    config.write_text("".join(toml(name, values) for name, values in sections.items()))
    started = [PoolProcess(config, tmp_path / f"pool-{number}.log") for number in range(2)]
    yield started
    for pool in started:
        pool.end()


async def put(queue: Queue) -> Job:
    request = {
        **REQUEST,
        "width": SIDE,
        "height": SIDE,
        "num_inference_steps": STEPS,
        "upscale": {"name": "large", "scale": 4},
        "output": {"format": "png"},
    }
    job = Job(id=new_job_id(), model="flux", bucket="one", request=request, steps=STEPS)
    await queue.put(job)
    return job


async def is_upscaled(queue: Queue, job: Job) -> bool:
    """Return whether the job is being upscaled and has a snapshot of its last step."""
    now = await queue.get(job.id)
    if now is None or now.detail is None or not now.snapshots:
        return False
    return now.detail.stage == "upscaling"


@pytest.mark.timeout(600)
async def test_another_worker_resumes_from_the_snapshot(
    pools: list[PoolProcess], queue: Queue, tmp_path: Path
) -> None:
    first, second = pools
    await first.ready()
    await second.ready()
    assert (await queue.models())["flux"].spec.upscalers["large"].scale == 4
    with held(tmp_path / CONFIG, STEPS + 1):
        job = await put(queue)
        await until(lambda: is_upscaled(queue, job))
        now = await queue.get(job.id)
        assert now is not None
        victim = first if f"pool {now.pool} is ready" in first.said else second
        other = second if victim is first else first
        victim.send(signal.SIGKILL)
    await lapsed(queue, job)
    job = await ended(queue, job)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2), job.error
    assert [(output.width, output.height) for output in job.outputs] == [(4 * SIDE, 4 * SIDE)]
    assert f"of {job.id} resumes after step" in other.said
    again = await ended(queue, await put(queue))
    assert [output.pixels_sha256 for output in again.outputs] == [
        output.pixels_sha256 for output in job.outputs
    ]
