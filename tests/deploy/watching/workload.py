"""Jobs of all kinds of ends, and requests of all kinds, for a system whose numbers and logs are to
be looked at."""

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
"""In every prompt, and wherever else a client may write something."""
WAIT_S = 60
"""That clients wait for an answer; some wait for an image."""
LONG_S = 3600
"""A deadline that is met, however slow the machine is."""
NO_TIME_S = 0.0001
"""A deadline that nobody can meet."""

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
"""Requests that are refused, or taken in spite of what else they say."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Clients:
    """Of one system."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=WAIT_S + 30, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def submit(self, **fields: Any) -> str:
        """A job's id."""
        answer = self._http.post("/v1/generate", json={"prompt": MARKER} | fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def refused(self, **fields: Any) -> int:
        """With which status."""
        answer = self._http.post("/v1/generate", json={"prompt": MARKER} | fields)
        assert 400 <= answer.status_code < 500, answer.text
        return answer.status_code

    def cancel(self, job_id: str) -> None:
        assert self._http.post(f"/v1/jobs/{job_id}/cancel").is_success

    def get(self, path: str, **params: str) -> httpx.Response:
        return self._http.get(path, params=params or None)

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(f"/v1/jobs/{job_id}").json())

    def ends(self, job_ids: Mapping[str, str]) -> dict[str, str]:
        """How jobs ended, once they have, by what they are called."""
        until(lambda: all(self.job(one)["state"] in ENDED for one in job_ids.values()), "all ends")
        return {name: self.job(one)["state"] for name, one in job_ids.items()}

    def provoke(self) -> int:
        """How many of the provocations were taken; their images are there."""
        taken = []
        for request in PROVOCATIONS:
            headers = {"Prefer": f"wait={WAIT_S}"} | request.get("headers", {})
            answer = self._http.post("/v1/generate", **{**request, "headers": headers})
            taken.append(answer.is_success)
        self.get(f"/{MARKER}", prompt=MARKER)
        self.get(f"/v1/jobs/{MARKER}")
        assert not all(taken)
        return sum(taken)


def picture() -> str:
    """A request's image."""
    data = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def all_kinds(clients: Clients, state: Path) -> dict[str, str]:
    """Jobs that wait, by how they will end, once a pool takes them: none may do so yet.

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
    shutil.rmtree(state / "outputs" / "inputs" / waiting["failed"])  # the store has lost it
    with queue_of(state) as redis:  # its deadline is past
        now = time.time()
        redis.hset(keys.job(waiting["late"]), mapping={"deadline_at": now, "latest_start": now})
        redis.zadd(f"{keys.PREFIX}deadlines", {waiting["late"]: now}, xx=True)
    return waiting


def none(clients: Clients) -> None:
    """Requests that are refused; a pool has to be there, for its predictions."""
    assert clients.refused(deadline_s=NO_TIME_S) == 422  # no pool could ever meet it
    assert clients.refused(width=-1) == 422
