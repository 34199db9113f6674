"""Exit of a worker in time, regardless of what its threads are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.embedded_redis import embedded
from deploy.local.processes import dies_with_parent
from service.jobs.queue import Queue
from tests.workers.jobs import toy_job
from tests.workers.multihost.processes import reserved_port
from tests.workers.polling import until
from tests.workers.stuck_pool import STAGES
from workers.health.liveness import LOADING, WAITING

DRAIN_S = 5


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, preexec_fn=dies_with_parent(), **options) as process:
        yield process
        process.kill()


@pytest.fixture
def pool(
    redis_url: str, empty_redis: object, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start the process. Yield it with its log."""
    log = tmp_path / "pool.log"
    arguments = [redis_url, str(tmp_path / "state"), str(DRAIN_S)]
    command = [sys.executable, "-m", "tests.workers.stuck_pool", *arguments]
    with log.open("w") as file, running(command, stdout=file, stderr=subprocess.STDOUT) as process:
        yield process, log


@pytest.mark.parametrize("signals", [1, 2])
async def test_hanging_worker_is_aborted(
    pool: tuple[subprocess.Popen[bytes], Path], queue: Queue, signals: int
) -> None:
    """Without a time limit, each of these stages would block the process forever."""
    process, log = pool
    jobs = [toy_job(decode="hopeless"), toy_job(phase="step"), toy_job(phase="compile")]
    for job, stage in zip(jobs, STAGES, strict=True):
        await queue.put(job)
        await until(lambda stage=stage: ended(process) or f"stuck in {stage}" in log.read_text())
        assert not ended(process), log.read_text()
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
    await until(lambda: ended(process))
    assert process.returncode == 0, log.read_text()
    current_jobs = [await queue.get(job.id) for job in jobs]
    assert not any(job.state.ended for job in current_jobs), (
        "each is given back, or its lease tells"
    )


WITH_A_HANDLER = """
import os
import sys
from workers.multihost.exits import watch_exits, exit_on_sigterm

exit_on_sigterm()
watch_exits(lambda *_: os.write(1, b"told\\n"))  # a print may not interrupt another one
os.write(1, b"there\\n")
sys.stdin.read()
"""


def test_signal_handler_disables_the_forced_exit() -> None:
    """A follower reports the signal to the first process of the slice, and works until it may
    exit."""
    command = [sys.executable, "-c", WITH_A_HANDLER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "there\n"
        for _ in range(3):
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "told\n"
        process.stdin.close()
        assert process.wait() == 0


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    with reserved_port() as first, reserved_port() as second:
        yield first, second


async def test_starting_process_exits_at_once(
    tmp_path: Path, flux_folder: Path, ports: tuple[int, int]
) -> None:
    """The process waits for Redis, then for another host in a library that blocks its main
    thread."""
    state, (page, coordinator) = tmp_path / "state", ports
    settings = {
        "ATELIER_REDIS__URL": f"unix://{state}/redis/redis.sock",
        "ATELIER_STATE_DIR": str(state),
        "ATELIER_MODELS__TOY__SOURCE": str(flux_folder),
        "ATELIER_POOLS__TOY__MODEL": "toy",
        "ATELIER_POOLS__TOY__METRICS_PORT": str(page),
    }
    hosts = ("--coordinator", f"127.0.0.1:{coordinator}", "--num-processes=2", "--process-id=1")
    command = [sys.executable, "-m", "atelier", "worker", "--pool=toy", *hosts]
    with running(command, env=os.environ | settings) as process:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{page}") as http:
            await until(lambda: says(http, WAITING))
            assert (await http.get("/healthz")).is_success
            with embedded(state):
                await until(lambda: says(http, LOADING))
        process.send_signal(signal.SIGTERM)
        await until(lambda: ended(process))
    assert process.returncode == 128 + signal.SIGTERM


def ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


async def says(http: httpx.AsyncClient, reason: str) -> bool:
    with suppress(httpx.TransportError):
        return reason in (await http.get("/readyz")).text
    return False
