"""Health page of a worker: by itself, and in a process whose model waits for signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import which

import httpx
import pytest
from redis.asyncio import Redis

from deploy.local.embedded_redis import embedded
from models.parallel.axis_rules import Layout
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.section import ConfigError
from tests.service.metrics.test_front_end import check
from tests.workers.jobs import ended, toy_job
from tests.workers.polling import until
from tests.workers.running_worker import at_work, has_step, status
from tests.workers.toy import SPEC, ToyPipeline
from workers.health.http import MAX_OPEN, HealthPage, health_server
from workers.health.liveness import CLAIM_S, LOADING, LOOP_S, WARMING_UP, Liveness
from workers.metrics import stages


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def liveness(clock: Clock) -> Liveness:
    return Liveness(clock)


@pytest.fixture
def page(liveness: Liveness) -> Iterator[HealthPage]:
    with health_server("toy", 0, liveness) as page:
        assert page
        yield page


@pytest.fixture
def http(page: HealthPage) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{page.server_address[1]}", timeout=30) as http:
        yield http


def reason(answer: httpx.Response) -> str:
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


def one_beat(liveness: Liveness) -> None:
    async def beat() -> None:
        beating = asyncio.create_task(liveness.beat())
        await asyncio.sleep(0)
        beating.cancel()

    asyncio.run(beat())


def test_health_server_has_three_endpoints(http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert reason(http.get("/readyz?verbose")) == LOADING
    metrics = http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert http.head("/metrics").content == b""
    stages.labels("toy", "decode").observe(1, {"trace_id": "a" * 32})
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    metrics = http.get("/metrics", headers=accept)
    assert metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert metrics.text.endswith("# EOF\n") and f'# {{trace_id="{"a" * 32}"}}' in metrics.text
    for path in ("/", "/metrics/", "/favicon.ico", "/debug"):
        assert http.get(path).status_code == 404
    assert http.post("/healthz").status_code == 501


def test_alive_while_the_loops_run(http: httpx.Client, liveness: Liveness, clock: Clock) -> None:
    clock.now += 10 * LOOP_S
    assert http.get("/healthz").is_success, "loading takes as long as it takes"
    liveness.warms_up()
    one_beat(liveness)
    assert reason(http.get("/readyz")) == WARMING_UP
    liveness.serves()
    assert http.get("/readyz").is_success
    clock.now += LOOP_S + 1
    assert "event loop" in reason(http.get("/healthz"))
    assert "event loop" in reason(http.get("/readyz"))
    one_beat(liveness)
    assert http.get("/healthz").is_success


def test_overdue_claim_fails_liveness(http: httpx.Client, liveness: Liveness, clock: Clock) -> None:
    liveness.serves()
    liveness.claims()
    clock.now += CLAIM_S + 1
    one_beat(liveness)
    assert "claim" in reason(http.get("/healthz"))
    liveness.rests()  # full: a step may take for ever
    clock.now += 100 * CLAIM_S
    one_beat(liveness)
    assert http.get("/healthz").is_success
    liveness.claims()
    clock.now += CLAIM_S + 1
    liveness.drains()
    assert http.get("/healthz").is_success, "a drain has its own end"
    assert "drains" in reason(http.get("/readyz"))


async def checked(
    liveness: Liveness, clock: Clock, free_slots: int, waiting_s: float | None
) -> str | None:
    """Check the claims, now and after the time of a claim; return why the worker is not ready."""

    async def oldest_s() -> float | None:
        return waiting_s

    await liveness.check_claims(free_slots, oldest_s)
    clock.now += CLAIM_S + 1
    await liveness.check_claims(free_slots, oldest_s)
    return liveness.not_ready_reason


async def test_a_worker_that_leaves_jobs_waiting_is_not_ready(
    liveness: Liveness, clock: Clock
) -> None:
    liveness.serves()
    liveness.claims()
    liveness.rests()
    assert await checked(liveness, clock, 0, 1e6) is None, "full: a step may take for ever"
    assert await checked(liveness, clock, 2, None) is None, "no job waits"
    assert await checked(liveness, clock, 2, 1) is None, "the job has just come"
    reason = await checked(liveness, clock, 2, 1e6)
    assert reason and "2 free slots and has begun no claim for 543 s" in reason
    assert liveness.failure_reason is None, "its running jobs continue"
    liveness.claims()
    liveness.rests()
    assert liveness.not_ready_reason is None
    assert await checked(liveness, clock, 0, 1e6) is None


async def test_the_fleet_knows_a_worker_that_leaves_jobs_waiting(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, clock: Clock
) -> None:
    """One slot is lost, and the job in the other does not end."""
    running, waiting = toy_job(phase="gated", num_inference_steps=20), toy_job()
    liveness = Liveness(clock)
    async with at_work(pipeline, layout, queue, store, slots=2, liveness=liveness) as (worker, _):
        await queue.put(running)
        pipeline.gate.open(3)
        await until(lambda: has_step(queue, running.id, 2))
        lost = worker._capacity.enter(1)
        worker.end_waiting_claim()
        await queue.put(waiting)
        await queue.redis.zadd(keys.waiting(SPEC.name), {waiting.id: 1}, xx=True)
        await worker._registration.announce()
        assert await status(queue) == (1, True)
        clock.now += CLAIM_S + 1
        await worker._registration.announce()
        assert await status(queue) == (1, False)
        assert liveness.leaves_jobs_waiting
        lost.release()
        pipeline.gate.open()
        assert (await ended(queue, waiting)).state is JobState.SUCCEEDED
        await worker._registration.announce()
        assert await status(queue) == (1, True)


def test_idle_connections_do_not_block_probes(page: HealthPage, http: httpx.Client) -> None:
    with ExitStack() as stack:
        for _ in range(2 * MAX_OPEN):
            stack.enter_context(socket.create_connection(("127.0.0.1", page.server_address[1])))
        assert http.get("/healthz").is_success


def test_occupied_port_is_reported(page: HealthPage) -> None:
    port = page.server_address[1]
    with (
        pytest.raises(ConfigError, match=rf"pools\.toy\.metrics_port: {port}"),
        health_server("toy", port, Liveness()),
    ):
        pass


async def test_pool_without_redis_is_alive(
    pipeline: ToyPipeline, layout: Layout, store: Store, tmp_path: Path
) -> None:
    """Claims fail one after the other, and each shows that the worker is alive."""
    with embedded(tmp_path) as url:
        queue = await Queue.connect(url, QueueSettings())
        async with Redis.from_url(url) as redis:
            server = int((await redis.info("server"))["process_id"])
        async with at_work(pipeline, layout, queue, store, slots=1) as (worker, _):
            liveness = worker.liveness
            await until(lambda: liveness.not_ready_reason is None)
            claims = liveness.claims_begun
            os.kill(server, signal.SIGKILL)
            await until(lambda: liveness.claims_begun >= claims + 2)
            assert liveness.failure_reason is None
        await queue.close()


@pytest.fixture
async def process(
    redis_url: str, empty_redis: Redis, state_dir: Path, tmp_path: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """Start a worker that loads its model. Yield its process, and a client of its page."""
    pool = {"model": "toy", "slots": 1, "metrics_port": 0, "drain_s": 600, "preview_every_s": 0}
    model = {"source": "nowhere", "warmup": [{"phase": "slow-to-compile"}]}
    settings = {
        "ATELIER_REDIS__URL": redis_url,
        "ATELIER_STATE_DIR": str(state_dir),
        "ATELIER_MODELS": json.dumps({"toy": model}),
        "ATELIER_POOLS": json.dumps({"toy": pool}),
        "JAX_NUM_CPU_DEVICES": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.workers.page_process"),
        env=os.environ | settings,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        yield process, http
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def test_alive_and_ready_from_loading_to_the_last_step(
    process: tuple[asyncio.subprocess.Process, httpx.AsyncClient], queue: Queue
) -> None:
    """The process is alive in every stage, however long.

    It is ready from the end of the warm-up to the drain.
    """
    worker, http = process

    async def says(path: str, status: int, text: str = "") -> bool:
        answer = await http.get(path)
        return answer.status_code == status and text in answer.text

    assert await says("/readyz", 503, LOADING)
    assert await says("/healthz", 200)
    assert worker.stdin is not None
    worker.stdin.write(b"\n")
    await until(lambda: says("/readyz", 503, WARMING_UP))
    assert await says("/healthz", 200)
    assert await says("/metrics", 200, 'atelier_pool_ready{model="toy"} 0.0')
    worker.send_signal(signal.SIGUSR1)
    await until(lambda: says("/readyz", 200))
    assert await says("/metrics", 200, 'atelier_pool_ready{model="toy"} 1.0')
    job = toy_job(phase="gated")
    await queue.put(job)
    await until(lambda: says("/metrics", 200, 'atelier_slots_busy{model="toy"} 1.0'))
    assert await says("/healthz", 200)
    assert await says("/readyz", 200)
    worker.send_signal(signal.SIGTERM)
    await until(lambda: says("/readyz", 503, "drains"))
    assert await says("/healthz", 200)
    page = (await http.get("/metrics")).text
    assert 'atelier_pool_ready{model="toy"} 0.0' in page
    check(which("promtool"), page)
    worker.send_signal(signal.SIGUSR2)
    assert (await ended(queue, job)).state is JobState.SUCCEEDED
    assert await worker.wait() == 0
    assert not (await queue.models())[SPEC.name].pools
