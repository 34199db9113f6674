"""What a real system says of its waits."""

from __future__ import annotations

import time
from datetime import datetime

from service.client import Client
from tests.e2e.system import System

FACTOR = 4.0
"""How far a wait may be from what was said. These steps take a millisecond: what the host does
around them (files, Redis, the store) is in no table, and other tests make the machine several times
as slow from one second to the next."""
JOB = {"prompt": "a star", "width": 64, "height": 64, "num_inference_steps": 200, "num_images": 2}


def test_waits_are_as_told(system: System) -> None:
    """Six jobs at two slots: each is told when it will end, and ends about then."""
    with Client(system.url) as client:
        ids = [str(client.submit(JOB | {"seed": seed})["id"]) for seed in range(6)]
        asked_at = time.time()
        told = [eta_s(client, job_id) for job_id in ids]
        took = [end(client, job_id) - asked_at for job_id in ids]
    for said, seconds in zip(told, took, strict=True):
        assert seconds / FACTOR < said < seconds * FACTOR, (told, took)
    assert told[-1] > 1.5 * told[0], "the last one waits for the first"


def eta_s(client: Client, job_id: str) -> float:
    client.job_id = job_id
    return float(client.job()["queue"]["eta_s"])


def end(client: Client, job_id: str) -> float:
    """When it has ended, in seconds since the epoch."""
    client.job_id = job_id
    assert [event.name for event in client.follow()][-1] == "succeeded"
    return datetime.fromisoformat(client.job()["finished_at"]).timestamp()
