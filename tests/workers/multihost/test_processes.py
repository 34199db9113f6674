"""Slices of two and of four processes, with real, tiny models and collectives by gloo: they draw
what one device draws, and a process that is killed or fails in mid-step takes all with it, but no
job."""

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
"""No lease lapses by itself, and no silence ends a slice."""
STEPS = 60
LATE = 24
"""Of these; Wan's second expert has begun by then."""
MORE = 6
"""Steps that are done before a slice is killed."""
STARVED = 45
"""The step at which one runs out of memory."""
LEAVE_S = 120.0
"""For all to leave when one has: it takes a fraction of a second, and longer on a busy machine."""
DRAIN_S = 600.0
"""Half of it for jobs to end."""
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
    """A slice of so many processes, of so many devices each, for this model and pool."""
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
    for one in started:
        one.end()
        print(one.said)  # is shown where the test has failed


def settings(model: Path, request: dict[str, Any], pool: str, more: str = "") -> str:
    """As TOML: a model with the size of that request, and a pool of it."""
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
    """The images of one device, without an engine."""
    pipeline = registry.load(POOL, str(model), "float32", {})
    fields = {**pipeline.spec.defaults, **request, "num_inference_steps": STEPS}
    seeds = range(request["seed"], request["seed"] + images)
    made = [generate(pipeline, {**fields, "seed": seed}, {}) for seed in seeds]
    return [frame for one in made for frame in (one if one.ndim == 4 else one[None])]


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
    async def is_there() -> bool:
        now = await queue.get(job.id) or job
        assert not now.state.ended, "it is not held"
        kept = sum(one.step > after for one in now.snapshots) >= snapshots
        return now.state == JobState.RUNNING and now.step > after and kept

    await until(is_there)


async def assert_drawn(store: Store, job: Job, expected: list[np.ndarray]) -> None:
    for picture, wanted in zip(await pixels(store, job), expected, strict=True):
        assert_same(picture, wanted)


@pytest.mark.timeout(900)  # two slices start, one after the other
@pytest.mark.parametrize(
    ("killed", "hosts", "mesh"), [(1, 2, TWO), (2, 4, FOUR)], ids=["of two", "of four"]
)
async def test_no_process_outlives_its_slice_and_every_job_does(
    killed: int,
    hosts: int,
    mesh: str,
    queue: Queue,
    start: Start,
    state_dir: Path,
    flux_folder: Path,
) -> None:
    """Who leaves because another is gone has an exit code of its own, or JAX's."""
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
        await in_mid_step(queue, job)
        fresh.send(1, signal.SIGTERM)
    job = await ended(queue, job)
    assert await fresh.exit_codes(LEAVE_S) == [0, 0], fresh.said
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2)
    await assert_drawn(store, job, expected)
    assert not (await queue.models())[POOL].pools


async def test_followers_leave_a_leader_that_is_killed(
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
async def test_another_slice_goes_on_with_what_a_killed_or_starved_one_has_kept(
    family: str,
    images: int,
    after: int,
    more: str,
    queue: Queue,
    start: Start,
    tmp_path: Path,
    state_dir: Path,
) -> None:
    """Wan goes on with its second expert, the first of its slice's life."""
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
    assert f"of {job.id} goes on after step" in starved.said
    job = await lapsed(queue, job)
    assert job.attempts == 2

    last = start(described, late=True)
    await last.ready()
    job = await ended(queue, job)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 3), last.said
    assert f"of {job.id} goes on after step" in last.said
    await assert_drawn(store, job, expected)
