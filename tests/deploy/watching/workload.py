"""Jobs with every outcome and requests of every kind, for a system whose metrics and logs are
checked."""

from __future__ import annotations

import base64
import io
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from service.jobs.model.state_machine import ENDED
from service.jobs.redis import keys
from tests.e2e.system import queue_of, until

MARKER = "zz" + secrets.token_hex(8)
"""Text in every prompt and in every other field that a client may fill."""
WAIT_S = 60
"""Seconds that clients wait for an answer; some wait for an image."""
LONG_S = 3600
"""A deadline that even a slow machine meets."""
NO_TIME_S = 0.0001
"""A deadline that cannot be met."""

PROVOCATIONS: tuple[dict[str, Any], ...] = (
    {"content": f'{{"prompt": "{MARKER}"'},
    {"json": {"prompt": MARKER, MARKER: MARKER}},
    {"json": {"prompt": {"text": MARKER}}},
    {"json": {"prompt": MARKER, "width": MARKER}},
    {"json": {"prompt": MARKER, "width": 1}},
    {"json": {"prompt": MARKER, "model": MARKER}},
    {"json": {"prompt": MARKER, "image": MARKER}},
    {"json": {"prompt": MARKER, "scheduler": {"name": MARKER}}},
    {"json": {"prompt": MARKER}, "headers": {"Idempotency-Key": MARKER * 40}},
    {"json": {"prompt": MARKER}, "headers": {"Authorization": f"Bearer atl_{MARKER}"}},
    {"json": {"prompt": MARKER}, "headers": {"Accept": MARKER}},
    {"json": {"prompt": MARKER}, "params": {"prompt": MARKER, "key": MARKER}},
)
"""Requests that are rejected, or accepted although they contain unknown fields."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process with SIGSTOP for the duration of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Clients:
    """Clients of one system."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=WAIT_S + 30, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def submit(self, **fields: Any) -> str:
        """Submit a job; returns its id."""
        response = self._http.post("/v1/generate", json={"prompt": MARKER} | fields)
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    def refused(self, **fields: Any) -> int:
        """Send a request that must be refused; returns the status."""
        response = self._http.post("/v1/generate", json={"prompt": MARKER} | fields)
        assert 400 <= response.status_code < 500, response.text
        return response.status_code

    def cancel(self, job_id: str) -> None:
        assert self._http.post(f"/v1/jobs/{job_id}/cancel").is_success

    def get(self, path: str, **params: str) -> httpx.Response:
        return self._http.get(path, params=params or None)

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(f"/v1/jobs/{job_id}").json())

    def ends(self, job_ids: Mapping[str, str]) -> dict[str, str]:
        """Wait for jobs to end; returns their final states by name."""
        until(
            lambda: all(self.job(job_id)["state"] in ENDED for job_id in job_ids.values()),
            "all ends",
        )
        return {name: self.job(job_id)["state"] for name, job_id in job_ids.items()}

    def provoke(self) -> int:
        """Send the provocations; returns how many were accepted, each with its image finished."""
        accepted = []
        for request in PROVOCATIONS:
            headers = {"Prefer": f"wait={WAIT_S}"} | request.get("headers", {})
            response = self._http.post("/v1/generate", **{**request, "headers": headers})
            accepted.append(response.is_success)
        self.get(f"/{MARKER}", prompt=MARKER)
        self.get(f"/v1/jobs/{MARKER}")
        assert not all(accepted)
        return sum(accepted)


def picture() -> str:
    """An image for a request, in Base64."""
    data = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def all_kinds(clients: Clients, state: Path) -> dict[str, str]:
    """Submit jobs by their future outcome; no pool may claim any of them before this returns.

    Args:
        state: the system's folder.
    """
    waiting = {
        "late": clients.submit(deadline_s=LONG_S, num_inference_steps=1),
        "succeeded": clients.submit(num_images=3),
        "in time": clients.submit(deadline_s=LONG_S),
        "canceled": clients.submit(),
        "failed": clients.submit(image=picture(), strength=1.0),
    }
    clients.cancel(waiting["canceled"])
    shutil.rmtree(
        state / "outputs" / "inputs" / waiting["failed"]
    )  # simulate an input that the store lost
    with queue_of(state) as redis:  # let its deadline pass
        now = time.time()
        redis.hset(keys.job(waiting["late"]), mapping={"deadline_at": now, "latest_start": now})
        redis.zadd(f"{keys.PREFIX}deadlines", {waiting["late"]: now}, xx=True)
    return waiting


def none(clients: Clients) -> None:
    """Send requests that are rejected; needs a pool, for its predictions."""
    assert clients.refused(deadline_s=NO_TIME_S) == 422  # no pool can meet it
    assert clients.refused(width=-1) == 422
