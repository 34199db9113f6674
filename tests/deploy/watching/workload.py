"""Jobs of all kinds of ends, for a system whose numbers are to be looked at."""

from __future__ import annotations

import base64
import io
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from service.jobs.life import ENDED
from tests.e2e.system import DEADLINE_S, until

LONG_S = 3600
"""A deadline that is met, however slow the machine is."""
NO_TIME_S = 0.0001
"""A deadline that nobody can meet."""


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
        self._http = httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False)
        self._job = {"prompt": "a star"}

    def close(self) -> None:
        self._http.close()

    def submit(self, **fields: Any) -> str:
        """A job's id."""
        answer = self._http.post("/v1/generate", json=self._job | fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def refused(self, **fields: Any) -> int:
        """With which status."""
        answer = self._http.post("/v1/generate", json=self._job | fields)
        assert 400 <= answer.status_code < 500, answer.text
        return answer.status_code

    def cancel(self, job_id: str) -> None:
        assert self._http.post(f"/v1/jobs/{job_id}/cancel").is_success

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self._http.get(f"/v1/jobs/{job_id}").json())

    def ends(self, job_ids: Mapping[str, str]) -> dict[str, str]:
        """How jobs ended, once they have, by what they are called."""
        until(lambda: all(self.job(one)["state"] in ENDED for one in job_ids.values()), "all ends")
        return {name: self.job(one)["state"] for name, one in job_ids.items()}


def picture() -> str:
    """A request's picture."""
    data = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def all_kinds(clients: Clients, store: Path) -> dict[str, str]:
    """Jobs that wait, by how they will end, once a pool takes them: none may do so yet.

    Args:
        store: its folder.
    """
    waiting = {
        "succeeded": clients.submit(num_images=2),
        "in time": clients.submit(deadline_s=LONG_S),
        "canceled": clients.submit(),
        "failed": clients.submit(image=picture(), strength=1.0),
    }
    clients.cancel(waiting["canceled"])
    shutil.rmtree(store / "inputs" / waiting["failed"])  # the store has lost it
    return waiting


def none(clients: Clients) -> None:
    """Requests that are refused; a pool has to be there, for its predictions."""
    assert clients.refused(deadline_s=NO_TIME_S) == 429
    assert clients.refused(width=-1) == 422
