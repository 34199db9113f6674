"""Worker processes with a tiny Flux: killed, stopped, drained."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from tests.workers.flux import REQUEST, SLOTS
from tests.workers.jobs import ended, lapsed, pixels
from tests.workers.paced import held
from tests.workers.polling import DEADLINE_S, until
from tests.workers.pool_process import PoolProcess

SETTINGS = QueueSettings(lease_s=3600)
"""Leases that expire only when a test expires them."""
DRAIN_S = 600
"""Duration of a drain. Jobs have half of it to end, longer than a test waits for an exit."""
ENDLESS = 100_000
"""Number of steps of a job that no drain waits for, while it is held."""
LONG = 60


@pytest.fixture(scope="module")
def config(
    tmp_path_factory: pytest.TempPathFactory, redis_url: str, flux_folder: Path, state_dir: Path
) -> Path:
    """Write an atelier.toml for all workers of this module."""
    warmup = {name: REQUEST[name] for name in ("width", "height", "max_sequence_length")}
    sections = {
        "": {"state_dir": str(state_dir)},
        "redis": {"url": redis_url},
        "queue": {"lease_s": SETTINGS.lease_s},
        "models.flux": {"source": str(flux_folder), "dtype": "float32", "defaults": warmup},
        "pools.flux": {"model": "flux", "slots": SLOTS, "drain_s": DRAIN_S},
    }
    file = tmp_path_factory.mktemp("config") / "atelier.toml"
    file.write_text("".join(toml(name, values) for name, values in sections.items()))
    return file


def toml(section: str, values: dict) -> str:
    head = f"[{section}]\n" if section else ""
    lines = (
        f"{'.'.join((name, key))} = {json.dumps(inner)}\n"
        for name, value in values.items()
        for key, inner in (value.items() if isinstance(value, dict) else ())
    )
    plain = (
        f"{name} = {json.dumps(value)}\n"
        for name, value in values.items()
        if not isinstance(value, dict)
    )
    return head + "".join(plain) + "".join(lines)


@pytest.fixture(scope="module")
def start(config: Path) -> Iterator[Callable[[], PoolProcess]]:
    started: list[PoolProcess] = []

    def start() -> PoolProcess:
        started.append(PoolProcess(config, config.with_name(f"pool-{len(started)}.log")))
        return started[-1]

    yield start
    for pool in started:
        pool.end()


async def put(queue: Queue, steps: int) -> Job:
    request = {**REQUEST, "num_inference_steps": steps, "output": {"format": "png"}}
    job = Job(id=new_job_id(), model="flux", bucket="one", request=request, steps=steps)
    await queue.put(job)
    return job


async def in_mid_step(queue: Queue, job: Job, snapshots: int = 0) -> Job:
    """Return the job when it has done some steps, and has this number of snapshots."""

    async def is_there() -> bool:
        nonlocal job
        job = await queue.get(job.id) or job
        assert not job.state.ended, "it is not held"
        is_under_way = job.state == JobState.RUNNING and job.step > 0
        return is_under_way and len(job.snapshots) >= snapshots

    await until(is_there)
    return job


async def caught(queue: Queue, config: Path, pool: PoolProcess, snapshots: int = 0) -> Job:
    """Return a job whose worker has been stopped midway."""
    with held(config, LONG // 2):
        job = await in_mid_step(queue, await put(queue, LONG), snapshots)
        pool.send(signal.SIGSTOP)
    return job


async def ends(queue: Queue, job: Job) -> list[str]:
    """Return the names of the job's final events."""
    names = []
    async with asyncio.timeout(DEADLINE_S):
        async for event in queue.events(job.id):
            names.append(event.name)
    return [name for name in names if name in {state.value for state in JobState if state.ended}]


@pytest.mark.timeout(900)  # two workers start, one after the other
async def test_job_survives_its_workers(
    queue: Queue, start: Callable[[], PoolProcess], config: Path, state_dir: Path
) -> None:
    """A worker is stopped for longer than its lease, and its successor is killed.

    Each time the other worker makes the same image, once from a snapshot, and the job ends once.
    Then the late worker is drained during a very long job.
    """
    store = Store(str(state_dir / "outputs"))
    first = start()
    await first.ready()
    undisturbed = await ended(queue, await put(queue, LONG))

    lost = await caught(queue, config, first)
    await lapsed(queue, lost)
    second = start()
    await second.ready()
    lost = await ended(queue, lost)
    assert (lost.state, lost.attempts) == (JobState.SUCCEEDED, 2)
    assert lost.outputs[0].sha256 == undisturbed.outputs[0].sha256

    killed = await caught(queue, config, second, snapshots=1)
    second.send(signal.SIGKILL)
    await lapsed(queue, killed)
    first.send(signal.SIGCONT)  # it continues without the job that it has lost
    killed = await ended(queue, killed)
    assert (killed.state, killed.attempts) == (JobState.SUCCEEDED, 2)
    assert killed.outputs[0].sha256 == undisturbed.outputs[0].sha256
    assert f"{killed.id} resumes after step" in first.said
    assert await ends(queue, killed) == ["succeeded"]

    with held(config, ENDLESS // 2):
        endless = await in_mid_step(queue, await put(queue, ENDLESS))
        first.send(signal.SIGTERM)
        assert await first.exit_code() == 0
    endless = await queue.get(endless.id)
    assert (endless.state, endless.attempts) == (JobState.QUEUED, 0)
    assert endless.snapshots[0].step >= endless.step > 0
    assert await ends(queue, lost) == ["succeeded"]
    after = await queue.get(lost.id)
    assert after.usage.device_seconds >= lost.usage.device_seconds, "it has told what it took"
    unchanged = lost.model_copy(update={"usage": after.usage})
    assert after == unchanged, "the late pool has changed nothing else"
    assert len(await pixels(store, lost)) == 1
    assert not (await queue.models())["flux"].pools
