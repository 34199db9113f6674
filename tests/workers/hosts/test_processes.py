"""Slices of two and of four processes, with a real, tiny Flux and collectives by gloo: they draw
what one device draws, and a process that is killed in mid-step takes all with it, but no job."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from models import catalog
from models.pipeline import generate
from service.jobs.job import Job, JobState, new_job_id
from service.jobs.outputs import Store
from service.jobs.queue import Queue
from service.settings import QueueSettings
from tests.workers.flux import REQUEST
from tests.workers.hosts.processes import SliceProcesses
from tests.workers.jobs import ended, pixels
from tests.workers.polling import until

SETTINGS = QueueSettings(lease_s=5, reap_every_s=1000)
"""Nobody reaps but this test, when it wants to know: what lies between is no silence of all."""
STEPS = 30
"""Enough to be met in the middle of."""
LEAVE_S = 10.0
"""For all to leave when one has: it takes a fraction of a second, and longer on a busy machine."""
DRAIN_S = 60.0
MOST_LEVELS, LEAST_DB = 2, 60.0
"""Between layouts: sums in another order."""
TWO = "mesh = {ici = {context = 2}, dcn = {context = 2}}"
FOUR = "mesh = {dcn = {context = 4}}"

Start = Callable[[int, int, str], SliceProcesses]


@pytest.fixture
def start(tmp_path: Path, redis_url: str, flux_folder: Path, state_dir: Path) -> Iterator[Start]:
    """A slice of so many processes, of so many devices each, with this mesh."""
    started: list[SliceProcesses] = []

    def start(hosts: int, devices: int, mesh: str) -> SliceProcesses:
        folder = tmp_path / str(len(started))
        config = tmp_path / f"{folder.name}.toml"
        config.write_text(settings(redis_url, flux_folder, state_dir, mesh))
        started.append(SliceProcesses(config, folder, hosts, devices))
        return started[-1]

    yield start
    for one in started:
        one.end()
        print(one.said)  # is shown where the test has failed


def settings(redis_url: str, model: Path, state_dir: Path, mesh: str) -> str:
    size = ", ".join(f"{name} = {REQUEST[name]}" for name in ("width", "height"))
    return f"""
        state_dir = "{state_dir}"
        redis.url = "{redis_url}"
        queue.lease_s = {SETTINGS.lease_s}
        [models.flux]
        source = "{model}"
        dtype = "float32"
        defaults = {{{size}, max_sequence_length = {REQUEST["max_sequence_length"]}}}
        [pools.flux]
        model = "flux"
        slots = 1
        drain_s = {DRAIN_S}
        {mesh}
    """


@pytest.fixture
async def queue(redis_url: str, empty_redis: object) -> AsyncIterator[Queue]:
    queue = await Queue.connect(redis_url, SETTINGS)
    yield queue
    await queue.close()


@pytest.fixture
def expected(flux_folder: Path) -> np.ndarray:
    """The picture of one device, without an engine."""
    flux = catalog.load("flux", str(flux_folder), "float32", {})
    return generate(flux, {**REQUEST, "num_inference_steps": STEPS}, {})


async def put(queue: Queue) -> Job:
    request = {**REQUEST, "num_inference_steps": STEPS, "output": {"format": "png"}}
    job = Job(id=new_job_id(), model="flux", bucket="one", request=request, steps=STEPS)
    await queue.put(job)
    return job


async def in_mid_step(queue: Queue, job: Job) -> None:
    async def is_there() -> bool:
        now = await queue.get(job.id) or job
        assert not now.state.ended, "it was done before it was met"
        return now.state == JobState.RUNNING and now.step > 0

    await until(is_there)


async def back_in_the_queue(queue: Queue, job: Job) -> Job:
    """The job when it waits again, at the latest when its lease has lapsed."""

    async def is_back() -> bool:
        nonlocal job
        await queue.reap()
        job = await queue.get(job.id) or job
        return job.state == JobState.QUEUED

    await until(is_back)
    return job


async def test_no_process_outlives_its_slice_and_every_job_does(
    queue: Queue, start: Start, state_dir: Path, expected: np.ndarray
) -> None:
    store = Store(str(state_dir / "outputs"))

    # Who leaves because another is gone has an exit code of its own, or JAX's.
    four = start(4, 1, FOUR)
    await four.ready()
    job = await put(queue)
    await in_mid_step(queue, job)
    four.send(2, signal.SIGKILL)
    assert all(await four.exit_codes(LEAVE_S)), four.said
    job = await back_in_the_queue(queue, job)
    assert len(job.deaths) == 1

    two = start(2, 2, TWO)
    await two.ready()
    job = await ended(queue, job)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2), two.said
    assert_same(await pixels(store, job), expected)
    other = await put(queue)
    await in_mid_step(queue, other)
    two.send(0, signal.SIGKILL)
    assert all(await two.exit_codes(LEAVE_S)), two.said
    other = await back_in_the_queue(queue, other)

    fresh = start(2, 2, TWO)
    await fresh.ready()
    await in_mid_step(queue, other)
    fresh.send(1, signal.SIGTERM)
    other = await ended(queue, other)
    assert await fresh.exit_codes(LEAVE_S) == [0, 0], fresh.said
    assert (other.state, other.attempts) == (JobState.SUCCEEDED, 2)
    assert_same(await pixels(store, other), expected)
    assert not (await queue.models())["flux"].pools


def assert_same(pictures: list[np.ndarray], expected: np.ndarray) -> None:
    (picture,) = pictures
    levels = np.abs(picture.astype(int) - expected)
    noise = np.mean(np.square(levels))
    assert levels.max() <= MOST_LEVELS
    assert noise == 0 or 10 * np.log10(255**2 / noise) >= LEAST_DB
    assert np.std(expected) > 10, "a picture without contrast proves nothing"
