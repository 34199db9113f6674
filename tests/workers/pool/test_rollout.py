"""Rollouts with real workers: of a model's new version, and of a worker's successor.

No request is rejected, and no job is lost.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.app import create_app
from service.jobs.aliases import AliasRecords
from service.jobs.model.alias import Alias
from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.redis import RedisSettings
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from tests.workers.flux import REQUEST, SLOTS, tuned
from tests.workers.jobs import ended
from tests.workers.paced import held
from tests.workers.polling import POLL_S, until
from tests.workers.pool.test_process import LONG, SETTINGS, toml
from tests.workers.pool_process import START_S, PoolProcess

R1, R2 = "flux@r1", "flux@r2"
WARMUP = {name: REQUEST[name] for name in ("width", "height", "max_sequence_length")}
Start = Callable[[str], PoolProcess]


@pytest.fixture
def config(tmp_path: Path, redis_url: str, flux_folder: Path, state_dir: Path) -> Path:
    new = tuned(flux_folder, tmp_path / "r2")
    sections: dict[str, dict[str, Any]] = {
        "": {"state_dir": str(state_dir)},
        "redis": {"url": redis_url},
        "queue": {"lease_s": SETTINGS.lease_s},
    }
    for name, source in ((R1, flux_folder), (R2, new)):
        model = {"source": str(source), "dtype": "float32", "defaults": WARMUP}
        sections[f'models."{name}"'] = model
        sections[f'pools."{name}"'] = {"model": name, "slots": SLOTS, "metrics_port": 0}
    file = tmp_path / "atelier.toml"
    file.write_text("".join(toml(name, values) for name, values in sections.items()))
    return file


@pytest.fixture
def start(config: Path) -> Iterator[Start]:
    started: list[PoolProcess] = []

    def start(name: str) -> PoolProcess:
        started.append(PoolProcess(config, config.with_name(f"{len(started)}.log"), name))
        return started[-1]

    yield start
    for pool in started:
        pool.end()


@pytest.fixture
async def http(
    redis_url: str, empty_redis: object, state_dir: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """Start a front end, and yield a client."""
    settings = Settings(
        state_dir=state_dir,
        redis=RedisSettings(url=redis_url),
        server=ServerSettings(models_age_s=0),
        queue=SETTINGS,
    )
    queue = await Queue.open(settings)
    app = create_app(settings, queue, Store(settings.store_url))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield http
    await queue.close()


async def weigh(queue: Queue, r1: float, r2: float) -> None:
    alias = Alias(weights={R1: r1, R2: r2})
    await AliasRecords(queue.redis).change(lambda _: {"flux": alias})


@pytest.mark.timeout(900)  # two workers start, one after the other
async def test_worker_is_replaced_during_a_rollout(
    http: httpx.AsyncClient, queue: Queue, start: Start, config: Path
) -> None:
    accepted: list[str] = []

    async def submitted_job(steps: int = 1) -> dict[str, Any]:
        job = await submit(http, "flux", steps)
        accepted.append(job["id"])
        return job

    await weigh(queue, 1, 0)
    old = start(R1)
    await old.ready()
    first = await submitted_job()
    assert first["served_by"] == R1

    await weigh(queue, 0, 1)
    new = start(R2)

    async def is_served_by_new() -> bool:
        """Send a request, and wait for its end if r1 serves it."""
        job = await submitted_job()
        if job["served_by"] == R2:
            return True
        assert (await queue.models())[R1].ready
        await ended(queue, await found(queue, job["id"]))
        return False

    await until(is_served_by_new)
    assert "is ready" in new.said

    await weigh(queue, 1, 0)
    with held(config, LONG // 2):
        late = [await submitted_job(LONG) for _ in range(4 * SLOTS)]
        assert {job["served_by"] for job in late} == {R1}

        await until(lambda: in_mid_step(queue, late))
        await weigh(queue, 0, 1)
        old.send(signal.SIGTERM)
        assert (await submitted_job())["served_by"] == R2
    assert await old.exit_code() == 0
    assert (await submitted_job())["served_by"] == R2
    jobs = [await ended(queue, await found(queue, job_id)) for job_id in accepted]
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    models = await queue.models()
    assert not models[R1].pools and len(models[R2].pools) == 1
    prints = {name: models[name].spec.fingerprint for name in (R1, R2)}
    assert len({*prints.values()}) == 2
    assert [job.fingerprint for job in jobs] == [prints[str(job.served_by)] for job in jobs]
    moved = [
        job
        for job in jobs
        if job.id in {response["id"] for response in late} and job.served_by == R2
    ]
    assert len(moved) >= len(late) - 2 * SLOTS
    for steps in (1, LONG):
        same = [job for job in jobs if job.request["num_inference_steps"] == steps]
        digests = {(job.served_by, job.outputs[0].pixels_sha256) for job in same}
        assert len(digests) == len({job.served_by for job in same}), "one image of each version"
        assert len({pixels for _, pixels in digests}) == len(digests), (
            "and another one of the other"
        )


@pytest.mark.timeout(900)  # two workers start, one after the other
async def test_successor_is_ready_before_the_only_worker_drains(
    http: httpx.AsyncClient, queue: Queue, start: Start, config: Path
) -> None:
    """A rolling update with `maxSurge: 1` and `maxUnavailable: 0` in the order of Kubernetes, which
    reads /readyz."""
    old = start(R1)
    await until(lambda: is_ready(old), START_S)
    has_worker: list[bool] = []

    async def observe() -> None:
        while True:
            has_worker.append((await queue.models())[R1].ready)
            await asyncio.sleep(POLL_S)

    observer = asyncio.create_task(observe())
    with held(config, LONG // 2):
        jobs = [await submit(http, R1, LONG) for _ in range(SLOTS)]
        await until(lambda: in_mid_step(queue, jobs))
        new = start(R1)
        await until(lambda: is_ready(new), START_S)
        assert await is_ready(old), "it drained before its successor was ready"
        jobs.append(short := await submit(http, R1, 1))
        before = await ended(queue, await found(queue, short["id"]))
        old.send(signal.SIGTERM)
        jobs.append(short := await submit(http, R1, 1))
        after = await ended(queue, await found(queue, short["id"]))
    assert before.pool == after.pool, "the successor did not serve while the old worker was busy"
    assert await old.exit_code() == 0
    ends = [await ended(queue, await found(queue, job["id"])) for job in jobs]
    observer.cancel()
    assert has_worker and all(has_worker), "the model was without a ready worker"
    assert {(job.state, job.attempts) for job in ends} == {(JobState.SUCCEEDED, 1)}
    digests = {(job.steps, job.outputs[0].pixels_sha256) for job in ends}
    assert len(digests) == 2, "the change of workers changed pixels"


async def is_ready(pool: PoolProcess) -> bool:
    """Whether a worker's readiness probe succeeds."""
    port = re.search(r"served on port (\d+)", pool.said)
    if port is None:
        return False
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.get(f"http://127.0.0.1:{port[1]}/readyz")).is_success


async def submit(http: httpx.AsyncClient, model: str, steps: int) -> dict[str, Any]:
    body = {**REQUEST, "model": model, "num_inference_steps": steps}
    answer = await http.post("/v1/generate", json=body)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def in_mid_step(queue: Queue, jobs: list[dict[str, Any]]) -> bool:
    """Whether one of the jobs has done some steps."""
    return any([(await found(queue, job["id"])).step > 0 for job in jobs])


async def found(queue: Queue, job_id: str) -> Job:
    job = await queue.get(job_id)
    assert job is not None
    return job
