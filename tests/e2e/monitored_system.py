"""Runs a real system with every kind of job while the project's Prometheus scrapes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx

from tests.deploy.watching.prometheus import Prometheus, running
from tests.deploy.watching.workload import MARKER, Clients, all_kinds, none, stopped
from tests.e2e.conftest import launch
from tests.e2e.system import START_S, System, until

READY_AT = r'"time": "([^"]+)".* "message": "pool tiny-\w+ is ready"'
POOLS_PAGE = r"health and metrics are served on port (\d+)"
SETTINGS = {
    "ATELIER_LOG_LEVEL": "debug",
    "ATELIER_LOG_FORMAT": "json",
    "ATELIER_TENANTS": json.dumps({"default": {"metrics_class": "gold"}}),
    "ATELIER_POOLS": json.dumps(
        {"tiny": {"model": "tiny", "slots": 2, "metrics_port": 0, "snapshot_share": 0}}
    ),
    "ATELIER_QUEUE__REAP_EVERY_S": "0.2",
}


@dataclass(frozen=True)
class Run:
    """A system that has run jobs, and the Prometheus that scraped it."""

    system: System
    pool: httpx.Client
    """Client of the pool's page."""
    clients: Clients
    prometheus: Prometheus
    jobs: dict[str, str]
    """Job ids by name."""
    ends: dict[str, str]
    taken: int
    """Number of further jobs, made from requests with unknown fields."""


@contextmanager
def watched(checkpoint: Path, state: Path, folder: Path) -> Iterator[Run]:
    """Run a system with a workload. Args: folder: folder of Prometheus."""
    system = launch(state, checkpoint, **SETTINGS)
    try:
        page = f"127.0.0.1:{system.wait_for(POOLS_PAGE, START_S)[1]}"
        with httpx.Client(base_url=f"http://{page}", timeout=30, trust_env=False) as pool:
            check_starting(system, pool)
            front = [system.url.removeprefix("http://")]
            targets = {"atelier-frontend": front, "atelier-pools": [page]}
            with running(folder, targets) as prometheus, closing(Clients(system.url)) as clients:
                yield at_work(system, pool, clients, prometheus, state)
    finally:
        system.close()


def check_starting(system: System, pool: httpx.Client) -> None:
    """Check that the pool's page is healthy before it is ready. A pool that is ready already must
    have logged so before the answer."""
    assert pool.get("/healthz").json() == {"status": "ok"}
    ready, answered_at = pool.get("/readyz"), datetime.now(UTC)
    if ready.is_success:
        logged_at = datetime.fromisoformat(system.wait_for(READY_AT, START_S)[1])
        assert logged_at <= answered_at
        return
    assert ready.status_code == 503 and int(ready.headers["retry-after"]) > 0
    assert ready.json()["detail"].startswith("it ")


def at_work(
    system: System, pool: httpx.Client, clients: Clients, prometheus: Prometheus, state: Path
) -> Run:
    """Run no job, then one, then jobs that wait for a stopped pool and end. Each stage waits until
    Prometheus has scraped it, so that every rate has data."""
    seen_with(prometheus, "atelier_admission_seconds_count == 0")
    seen_with(prometheus, "atelier_claims_total == 0")
    none(clients)
    jobs = {"first": clients.submit()}
    clients.ends(jobs)
    seen_with(prometheus, 'atelier_jobs_ended_total{outcome="succeeded"} == 1')
    with stopped(system.child("worker")):
        jobs |= all_kinds(clients, state)
        seen_with(prometheus, 'atelier_jobs_ended_total{outcome="expired"} == 1')
        seen_with(prometheus, 'atelier_queue_jobs{state="queued"} == 3')
        seen_with(prometheus, "atelier_queue_backlog_device_seconds > 0")
    ends, taken = clients.ends(jobs), clients.provoke()
    pool.get(f"/{MARKER}?{MARKER}")
    seen_with(prometheus, f"sum(atelier_jobs_ended_total) == {len(ends) + taken}")
    return Run(system, pool, clients, prometheus, jobs, ends, taken)


def seen_with(prometheus: Prometheus, expr: str) -> None:
    until(lambda: prometheus.query(expr), expr)
