"""Slices of two and of four processes, with tiny models and gloo collectives.

They generate the same images as one device. A process that is killed or fails ends its slice, but
no job is lost.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from models import registry
from models.interface.pipeline import generate
from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.workers.flux import REQUEST
from tests.workers.jobs import ended, lapsed, pixels
from tests.workers.multihost.processes import POOL, SliceProcesses
from tests.workers.multihost.tiny import MAKE, asked, assert_same
from tests.workers.paced import held
from tests.workers.polling import until

LEASE_S = 3600
"""Duration of leases and of silence that no test reaches."""
STEPS = 60
LATE = 24
"""Step at which Wan's second expert has begun."""
MORE = 6
"""Number of further steps before a slice is killed."""
STARVED = 45
"""Step at which a process runs out of memory."""
LEAVE_S = 120.0
"""Timeout for all processes to exit after one: a fraction of a second on an idle machine."""
DRAIN_S = 600.0
"""Duration of a drain, half of which is for jobs to end."""
TWO = "mesh = {ici = {context = 2}, dcn = {fsdp = 2}}"
"""Half of the weights is on each host."""
FOUR = "mesh = {dcn = {context = 4}}"
CFG = "mesh = {ici = {context = 2}, dcn = {cfg = 2}}"


class Start(Protocol):
    def __call__(
        self, settings: str, hosts: int = 2, devices: int = 2, **more: Any
    ) -> SliceProcesses: ...


@pytest.fixture
def start(tmp_path: Path, redis_url: str, state_dir: Path) -> Iterator[Start]:
    """Return a function that starts a slice of `hosts` processes with `devices` devices each."""
    started: list[SliceProcesses] = []

    def start(settings: str, hosts: int = 2, devices: int = 2, **more: Any) -> SliceProcesses:
        folder = tmp_path / str(len(started))
        config = tmp_path / f"{folder.name}.toml"
        config.write_text(
            f'state_dir = "{state_dir}"\nredis.url = "{redis_url}"\n'
            f"queue.lease_s = {LEASE_S}\n{settings}"
        )
        started.append(SliceProcesses(config, folder, hosts, devices, **more))
        return started[-1]

    yield start
    for processes in started:
        processes.end()
        print(processes.said)  # shown if the test fails


def settings(model: Path, request: dict[str, Any], pool: str, more: str = "") -> str:
    """Return TOML settings: a model with the request's size, and a pool of it."""
    names = ("width", "height", "num_frames", "max_sequence_length")
    size = ", ".join(f"{name} = {request[name]}" for name in names if name in request)
    return f"""
        [models.{POOL}]
        source = "{model}"
        dtype = "float32"
        defaults = {{{size}}}
        {more}
        [pools.{POOL}]
        model = "{POOL}"
        slots = 1
        drain_s = {DRAIN_S}
        {pool}
    """


def drawn(model: Path, request: dict[str, Any], images: int = 1) -> list[np.ndarray]:
    """Generate the images on one device, without an engine."""
    pipeline = registry.load(POOL, str(model), "float32", {})
    fields = {**pipeline.spec.defaults, **request, "num_inference_steps": STEPS}
    seeds = range(request["seed"], request["seed"] + images)
    outputs = [generate(pipeline, {**fields, "seed": seed}, {}) for seed in seeds]
    return [frame for output in outputs for frame in (output if output.ndim == 4 else output[None])]


async def put(queue: Queue, request: dict[str, Any], images: int = 1) -> Job:
    fields = {**request, "num_inference_steps": STEPS, "num_images": images}
    fields["output"] = {"format": "png"}
    job = Job(
        id=new_job_id(),
        model=POOL,
        bucket="one",
        request=fields,
        images=images,
        steps=STEPS * images,
    )
    await queue.put(job)
    return job


async def in_mid_step(queue: Queue, job: Job, after: int = 0, snapshots: int = 0) -> None:
    """Wait until the job has more than `after` steps; a record keeps those of an earlier claim."""

    async def is_there() -> bool:
        now = await queue.get(job.id) or job
        assert not now.state.ended, "it is not held"
        enough = sum(snapshot.step > after for snapshot in now.snapshots) >= snapshots
        return now.state == JobState.RUNNING and now.step > after and enough

    await until(is_there)


async def assert_drawn(store: Store, job: Job, expected: list[np.ndarray]) -> None:
    for picture, reference in zip(await pixels(store, job), expected, strict=True):
        assert_same(picture, reference)


@pytest.mark.timeout(900)  # two slices start, one after the other
@pytest.mark.parametrize(
    ("killed", "hosts", "mesh"), [(1, 2, TWO), (2, 4, FOUR)], ids=["of two", "of four"]
)
async def test_processes_exit_with_their_slice_and_jobs_survive(
    killed: int,
    hosts: int,
    mesh: str,
    queue: Queue,
    start: Start,
    state_dir: Path,
    flux_folder: Path,
) -> None:
    """A process that exits because another is gone has its own exit code, or JAX's."""
    store = Store(str(state_dir / "outputs"))
    expected = drawn(flux_folder, REQUEST)
    slice_ = start(settings(flux_folder, REQUEST, mesh), hosts, 4 // hosts)
    await slice_.ready()
    with held(slice_.config, MORE):
        job = await put(queue, REQUEST)
        await in_mid_step(queue, job)
        slice_.send(killed, signal.SIGKILL)
    assert all(await slice_.exit_codes(LEAVE_S)), slice_.said
    job = await lapsed(queue, job)
    assert len(job.deaths) == 1

    fresh = start(settings(flux_folder, REQUEST, TWO))
    with held(fresh.config, STEPS // 2):
        await fresh.ready()
        await in_mid_step(queue, job, MORE)
        fresh.send(1, signal.SIGTERM)
    job = await ended(queue, job)
    assert await fresh.exit_codes(LEAVE_S) == [0, 0], fresh.said
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2)
    await assert_drawn(store, job, expected)
    assert not (await queue.models())[POOL].pools


async def test_followers_exit_if_the_leader_is_killed(
    queue: Queue, start: Start, flux_folder: Path
) -> None:
    two = start(settings(flux_folder, REQUEST, TWO))
    await two.ready()
    with held(two.config, MORE):
        job = await put(queue, REQUEST)
        await in_mid_step(queue, job)
        two.send(0, signal.SIGKILL)
    assert all(await two.exit_codes(LEAVE_S)), two.said
    assert len((await lapsed(queue, job)).deaths) == 1


@pytest.mark.timeout(900)  # three slices start, one after the other
@pytest.mark.parametrize(
    ("family", "images", "after", "more"),
    [("sdxl", 2, 0, ""), ("wan", 1, LATE, "swap_experts = true")],
)
async def test_another_slice_resumes_the_job_of_a_killed_slice(
    family: str,
    images: int,
    after: int,
    more: str,
    queue: Queue,
    start: Start,
    tmp_path: Path,
    state_dir: Path,
) -> None:
    """Wan resumes with its second expert, the first that the new slice loads."""
    store = Store(str(state_dir / "outputs"))
    model, request = MAKE[family](tmp_path / "model"), asked(family, {})
    expected = drawn(model, request, images)
    described = settings(model, request, CFG + "\nsnapshot_share = 0.9", more)

    first = start(described)
    await first.ready()
    with held(first.config, after + MORE):
        job = await put(queue, request, images)
        await in_mid_step(queue, job, after, snapshots=1)
        first.send(1, signal.SIGKILL)
    assert all(await first.exit_codes(LEAVE_S)), first.said
    job = await lapsed(queue, job)
    assert len(job.deaths) == 1

    starved = start(described, starves=1)
    with held(starved.config, STARVED):
        await starved.ready()
        await in_mid_step(queue, job, job.step, snapshots=1)
        starved.send(1, signal.SIGUSR1)
    assert await starved.exit_codes(LEAVE_S) == [1, 1], starved.said
    why = "process 1 failed: it ran out of memory (RESOURCE_EXHAUSTED: Out of memory allocating"
    assert why in starved.said
    assert f"of {job.id} resumes after step" in starved.said
    job = await lapsed(queue, job)
    assert job.attempts == 2

    last = start(described, late=True)
    await last.ready()
    job = await ended(queue, job)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 3), last.said
    assert f"of {job.id} resumes after step" in last.said
    await assert_drawn(store, job, expected)
