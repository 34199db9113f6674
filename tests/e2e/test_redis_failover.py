"""A whole system on the manifests' servers and Sentinels, whose primary is killed under load."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.k8s.conftest import V6E, VARIANTS
from tests.deploy.k8s.objects import pods_of
from tests.deploy.k8s.rendering import edited
from tests.deploy.k8s.sentinel_pods import sentinel_pods
from tests.e2e.conftest import Start
from tests.e2e.system import until

CLIENTS = 3
BEFORE, AFTER = 12, 12
"""Number of jobs accepted before and after the primary is killed."""
END_S = 600.0
AGAIN_S = 0.1
REQUEST = {"model": "tiny", "prompt": "a star", "width": 64, "height": 64, "seed": 1}


class Load:
    """Clients that submit jobs, each with a key, and repeat what was not answered by 202."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30, trust_env=False)
        self.accepted: list[tuple[str, float]] = []
        """Ids of accepted jobs, with the time of the answer."""
        self._numbers = itertools.count()
        self._is_over = threading.Event()

    def submit(self) -> None:
        """Submit jobs until the load is over."""
        while not self._is_over.is_set():
            key = f"job {next(self._numbers)}"
            while not (answer := self._post(key)):
                time.sleep(AGAIN_S)
            self.accepted.append((answer["id"], time.monotonic()))

    def _post(self, key: str) -> dict[str, Any] | None:
        """Post a request; None: refused for now, or not answered."""
        try:
            answer = self.http.post(
                "/v1/generate", json=REQUEST, headers={"Idempotency-Key": key, "Prefer": ""}
            )
        except httpx.TransportError:
            return None
        assert answer.status_code in (202, 429, 503), answer.text
        return dict(answer.json()) if answer.status_code == 202 else None

    def accepts(self, number: int) -> None:
        """Wait until `number` more jobs are accepted."""
        most = len(self.accepted) + number
        until(lambda: len(self.accepted) >= most, f"{number} accepted jobs", END_S)

    def ends(self) -> dict[str, str]:
        """End state of each accepted job; "lost" if there is no such job."""
        self._is_over.set()
        return {job_id: self._end(job_id) for job_id, _ in self.accepted}

    def _end(self, job_id: str) -> str:
        states: list[str] = []

        def has_ended() -> bool:
            try:
                answer = self.http.get(f"/v1/jobs/{job_id}")
            except httpx.TransportError:
                return False
            states.append("lost" if answer.status_code == 404 else answer.json().get("state", ""))
            return states[-1] in ("lost", "succeeded", "failed", "canceled")

        until(has_ended, f"the end of {job_id}", END_S)
        return states[-1]


@pytest.mark.timeout(1800)  # seconds; the machine may be slow
def test_no_accepted_job_is_lost_with_the_primary(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = edited(tmp_path / "k8s", V6E, *VARIANTS["redis-sentinel"])
    (front,) = pods_of(objects, "frontend")
    (tmp_path / "pods").mkdir()
    with sentinel_pods(objects, tmp_path / "pods") as servers:
        until(servers.know_each_other, "Sentinels that know all", END_S)
        load = Load(start(**servers.settings_of(front)).url)
        with load.http, ThreadPoolExecutor(CLIENTS) as clients:
            submitting = [clients.submit(load.submit) for _ in range(CLIENTS)]
            try:
                load.accepts(BEFORE)
                primary = servers.primary()
                assert primary is not None
                servers.kill(primary)
                killed_at = time.monotonic()
                load.accepts(CLIENTS + AFTER)
            finally:
                ends = load.ends()
            for task in submitting:
                task.result()
        assert servers.primary() not in (None, primary)
    times = sorted(at for _, at in load.accepted)
    away_s = max(after - before for before, after in itertools.pairwise(times) if after > killed_at)
    with capsys.disabled():
        print(f"\naccepted {len(ends)}; none for {away_s:.1f} s after the kill")
    assert {state for state in ends.values()} == {"succeeded"}
