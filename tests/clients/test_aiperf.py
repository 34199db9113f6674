"""Unmodified aiperf in its own environment against the real front end."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path
from typing import Any

import pytest

import models.demo
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from tests.clients.programs import ROOT
from tests.service.standin import SPEC, VIDEO, StandIn

PROGRAM = ROOT / ".venv-aiperf" / "bin" / "aiperf"
TOKENIZER = Path(models.demo.__file__).parent / "flux" / "tokenizer"
"""Any tokenizer works; aiperf counts its prompts' tokens with it."""
DEADLINE_S = 240
REQUESTS = 4
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="make clients brings aiperf")


async def profile(address: str, key: str, folder: Path, model: str, *more: str) -> dict[str, Any]:
    """Report of some requests, two at a time."""
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "profile", "--url", address, "--api-key", key, "--model", model),
        *("--tokenizer", TOKENIZER, "--synthetic-input-tokens-mean", "8", "--ui", "none"),
        *("--request-count", str(REQUESTS), "--concurrency", "2", "--artifact-dir", folder),
        *more,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=folder,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
    report: dict[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())
    return report


def all_succeeded(report: dict[str, Any]) -> bool:
    return report["request_count"]["avg"] == REQUESTS and not report["error_summary"]


async def test_images(address: str, key: str, tmp_path: Path, pool: StandIn) -> None:
    more = ("--endpoint-type", "image_generation", "--extra-inputs", "size:96x64")
    assert all_succeeded(await profile(address, key, tmp_path, SPEC.name, *more))
    assert [(job.tenant, job.request["width"]) for job in pool.received] == [
        ("acme", 96)
    ] * REQUESTS


async def test_videos(
    address: str, key: str, tmp_path: Path, queue: Queue, video_pool: StandIn
) -> None:
    more = ("--endpoint-type", "video_generation", "--extra-inputs", "num_frames:5")
    assert all_succeeded(await profile(address, key, tmp_path, VIDEO.name, *more))
    jobs = [await queue.get(job.id) for job in video_pool.received]
    assert [job and job.state for job in jobs] == [JobState.SUCCEEDED] * REQUESTS
