"""What a real system says of its waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from service.client import Client
from tests.e2e.conftest import launch
from tests.e2e.system import System

FACTOR = 4.0
"""How far a wait may be from what was said. These steps take a millisecond: what the host does
around them (files, Redis, the store) is in no table."""
ROUNDS = 6
"""Maximum number of times that the same is asked: other tests make the machine several times as
slow from one second to the next, and what was measured then is told until new measurements have
replaced it."""
JOB = {"prompt": "a star", "width": 64, "height": 64, "num_inference_steps": 200, "num_images": 2}


@pytest.fixture
def system(checkpoint: Path, state: Path) -> Iterator[System]:
    """It has nothing else to do, and one model."""
    running = launch(state, checkpoint)
    yield running
    running.close()


def test_waits_are_as_told(system: System) -> None:
    """Six jobs at two slots: each is told when it will end, and ends about then."""
    rounds = []
    with Client(system.url) as client:
        for first_seed in range(0, 6 * ROUNDS, 6):
            asked = waits(client, range(first_seed, first_seed + 6))
            if asked is None:
                continue
            told, took = asked
            assert told[-1] > 1.5 * told[0], "the last one waits for the first"
            rounds.append((told, took))
            if all(s / FACTOR < said < s * FACTOR for said, s in zip(told, took, strict=True)):
                return
    pytest.fail(f"no round was about as told: {rounds}")


def waits(client: Client, seeds: range) -> tuple[list[float], list[float]] | None:
    """Submit one job a seed; return the seconds that each was told of, and those that it took.

    None if one had ended before it was asked about: this process had to wait for the machine.
    """
    ids = [str(client.submit(JOB | {"seed": seed})["id"]) for seed in seeds]
    asked_at = time.time()
    told = [eta_s(client, job_id) for job_id in ids]
    took = [end(client, job_id) - asked_at for job_id in ids]
    known = [seconds for seconds in told if seconds is not None]
    return (known, took) if len(known) == len(told) else None


def eta_s(client: Client, job_id: str) -> float | None:
    """Return the seconds that a job is told to wait; None if it has ended."""
    client.job_id = job_id
    job = client.job()
    if job["state"] == "succeeded":
        return None
    return float(job["queue"]["eta_s"])


def end(client: Client, job_id: str) -> float:
    """When it has ended, in seconds since the epoch."""
    client.job_id = job_id
    assert [event.name for event in client.follow()][-1] == "succeeded"
    return datetime.fromisoformat(client.job()["finished_at"]).timestamp()
