"""Store without space: writes are retried, the failure has a reason, and no partial file
remains."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from tests.workers.jobs import ended, pixels, toy_job

FEW_BYTES = 64
"""Smaller than any image."""


CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2
"""Constants of prctl(2) and capabilities(7)."""


def obey_modes() -> None:
    """Drop the capabilities by which root's processes ignore a folder's mode."""
    for capability in (DAC_OVERRIDE, DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(CAPBSET_DROP, capability, 0, 0, 0)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def pool(redis_url: str, empty_redis: object, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [redis_url, str(tmp_path / "outputs"), str(FEW_BYTES)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "tests.workers.full_store", *arguments]
    with subprocess.Popen(command, preexec_fn=obey_modes, **quiet) as process:
        yield process
        process.kill()


async def test_full_store_fails_the_job_with_its_reason_and_recovers(
    pool: subprocess.Popen[bytes], queue: Queue, tmp_path: Path
) -> None:
    job = toy_job()
    await queue.put(job)
    job = await ended(queue, job)
    assert (job.state, job.attempts) == (JobState.FAILED, 2)
    assert job.error.code == "store"
    assert "File too large" in job.error.message and "has space" in job.error.message
    assert not await asyncio.to_thread(files_in, tmp_path)

    _, most = resource.prlimit(pool.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pool.pid, resource.RLIMIT_FSIZE, (most, most))
    other = toy_job()
    await queue.put(other)
    other = await ended(queue, other)
    assert len(await pixels(Store(str(tmp_path / "outputs")), other)) == 1

    files = tmp_path / "outputs" / "outputs"
    files.chmod(0o555)
    late = toy_job()
    await queue.put(late)
    late = await ended(queue, late)
    assert (late.state, late.attempts, late.error.code) == (JobState.FAILED, 2, "store")
    assert "Permission denied" in late.error.message and "grants this" in late.error.message
    files.chmod(0o755)
    last = toy_job()
    await queue.put(last)
    assert (await ended(queue, last)).state == JobState.SUCCEEDED
    assert len(await pixels(Store(str(tmp_path / "outputs")), other)) == 1, "nothing is lost"


async def test_partial_file_is_deleted_if_the_store_is_full(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(StoreError, match="has space"):
            await store.put("outputs/job/1-0.png", bytes(2**21), "image/png")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not await asyncio.to_thread(files_in, tmp_path / "outputs")
    await store.put("outputs/job/1-0.png", bytes(2**21), "image/png")
    assert len(await store.get("outputs/job/1-0.png")) == 2**21
