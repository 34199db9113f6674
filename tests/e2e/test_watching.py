"""What watches a real system: the project's Prometheus scrapes it, and every query of every
dashboard, recording rule and alert gives data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.deploy.watching.files import (
    Asked,
    asked_by_dashboards,
    asked_by_rules,
    dashboards,
    panels,
)
from tests.deploy.watching.prometheus import Prometheus, running
from tests.deploy.watching.workload import Clients, all_kinds, none, stopped
from tests.e2e.conftest import launch
from tests.e2e.system import START_S, System, until

POOLS = {"tiny": {"model": "tiny", "slots": 2, "metrics_port": 0}}
POOLS_PAGE = r"told on port (\d+)"

NOTHING_BECAUSE = {
    "the runtime of CPUs tells nothing of memory": (
        "Atelier: pools / Memory in use, of the limit / A",
        "Atelier: pools / Memory by kind / A",
        "instance:atelier_device_memory:ratio",
        "AtelierDeviceMemoryNearLimit",
    ),
    "the peak of a CPU is in no table": (
        "Atelier: pools / Of the chips' peak (MFU) / A",
        "Atelier: pools / Achieved of peak (MFU) / A",
        "model:atelier_mfu:ratio_rate30m",
        "AtelierMfuFallen",
    ),
    "nobody has taken a profile": ("Atelier: pools / Communication's share of a step / A",),
    "a front end is there": ("AtelierFrontEndGone",),
    "the system is younger than six hours": ("AtelierCompileCacheMisses",),
}
"""Who legitimately gets no series of this run, by the reason."""


@dataclass(frozen=True)
class Run:
    """A system that has done something, and who watched it."""

    system: System
    prometheus: Prometheus
    ends: dict[str, str]
    """Of jobs, by what they are called."""


@pytest.fixture(scope="module")
def run(checkpoint: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    system = launch(state, checkpoint, ATELIER_POOLS=json.dumps(POOLS))
    try:
        page = system.wait_for(POOLS_PAGE, START_S)[1]
        targets = {
            "atelier-frontend": [system.url.removeprefix("http://")],
            "atelier-pools": [f"127.0.0.1:{page}"],
        }
        with running(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
            yield at_work(system, prometheus, state / "outputs")
    finally:
        system.close()


def at_work(system: System, prometheus: Prometheus, store: Path) -> Run:
    """Nothing, then one job, then jobs that wait for a pool that stands still, and their ends; each
    of these until Prometheus has seen it, so that there are rates of all."""
    clients = Clients(system.url)
    try:
        seen_with(prometheus, "atelier_admission_seconds_count == 0")
        seen_with(prometheus, "atelier_claims_total == 0")
        none(clients)
        first = clients.ends({"first": clients.submit()})
        seen_with(prometheus, 'atelier_jobs_ended_total{outcome="succeeded"} == 1')
        with stopped(system.child("worker")):
            jobs = all_kinds(clients, store)
            seen_with(prometheus, 'atelier_queue_jobs{state="queued"} == 3')
        ends = clients.ends(jobs)
    finally:
        clients.close()
    seen_with(prometheus, f"sum(atelier_jobs_ended_total) == {len(first | ends)}")
    return Run(system, prometheus, first | ends)


def seen_with(prometheus: Prometheus, expr: str) -> None:
    until(lambda: prometheus.query(expr), expr)


def test_the_run_had_all_kinds_of_ends(run: Run) -> None:
    assert run.ends == {
        "first": "succeeded",
        "succeeded": "succeeded",
        "in time": "succeeded",
        "canceled": "canceled",
        "failed": "failed",
    }


def test_every_rule_is_evaluated(run: Run) -> None:
    until(lambda: not run.prometheus.unhealthy_rules(), "the rules' evaluation")


def test_every_query_gives_data(run: Run) -> None:
    """But those of the list, which is exact."""
    asked = [*asked_by_dashboards("15m", "1h"), *asked_by_rules()]
    assert len(asked) > 100
    excused = {name for names in NOTHING_BECAUSE.values() for name in names}
    soon(lambda: nothing(run.prometheus, asked), excused)


def soon(ask: Callable[[], object], expected: object) -> None:
    """A series is away for a while where a scrape took too long."""
    try:
        until(lambda: ask() == expected, "what is expected")
    except AssertionError:
        assert ask() == expected
        raise


def nothing(prometheus: Prometheus, asked: list[Asked]) -> set[str]:
    """Who gets no series, or only such that are no numbers."""
    return {
        one.by
        for one in asked
        if all(series["value"][1] == "NaN" for series in prometheus.query(one.expr))
    }


SELECTOR = re.compile(r"\b(?:atelier_\w+|\w+:\w+:\w+|process_\w+|up|ALERTS)(?:\{[^}]*\})?")
UNMATCHED_BECAUSE = {
    "nothing failed at the door": (
        'atelier_http_requests_total{route=~"/v1/.+",status=~"5.."}',
        'atelier_jobs_refused_total{reason="store_unreachable"}',
    ),
    "no alert has lasted long enough": ('ALERTS{alertname=~"Atelier.+",alertstate="firing"}',),
    "the runtime of CPUs tells nothing of memory": (
        'atelier_device_memory_bytes{instance=~".*"}',
        'atelier_device_memory_bytes{kind="in_use"}',
        'atelier_device_memory_bytes{kind="limit"}',
        "instance:atelier_device_memory:ratio",
        'instance:atelier_device_memory:ratio{instance=~".*"}',
    ),
    "the peak of a CPU is in no table": (
        "atelier_peak_flops",
        "model:atelier_mfu:ratio_rate30m",
        'model:atelier_mfu:ratio_rate30m{model=~".*"}',
    ),
    "nobody has taken a profile": ('atelier_communication_ratio{model=~".*",instance=~".*"}',),
}
"""Series that queries ask for and this run has not, by the reason."""


def test_every_series_that_is_asked_for_is_there(run: Run) -> None:
    """Also those beside which there is another one (`or`), so that the query gives data."""
    asked = [*asked_by_dashboards("15m", "1h"), *asked_by_rules()]
    named = {name for one in asked for name in SELECTOR.findall(one.expr)}
    excused = {name for names in UNMATCHED_BECAUSE.values() for name in names}
    soon(lambda: {name for name in named if not run.prometheus.query(name)}, excused)


SUMS = {
    'sum(atelier_jobs_ended_total{outcome="succeeded"})': 3,
    'sum(atelier_jobs_ended_total{outcome="failed"})': 1,
    'sum(atelier_jobs_ended_total{outcome="canceled"})': 1,
    'sum(atelier_job_failures_total{reason="store"})': 1,
    "sum(atelier_job_failures_total)": 1,
    'sum(atelier_job_deadlines_total{outcome="met"})': 1,
    "sum(atelier_job_deadlines_total)": 1,
    'sum(atelier_jobs_refused_total{reason="deadline_too_soon"})': 1,
    "sum(atelier_jobs_accepted_total)": 5,
    "sum(atelier_job_wait_seconds_count)": 4,
    "sum(atelier_admission_seconds_count)": 5,
    'sum(atelier_job_stage_seconds_count{stage="denoise"})': 4,
}


def test_the_numbers_are_those_of_the_run(run: Run) -> None:
    """Of five jobs, one of which has two pictures, one was canceled in the queue, and one failed
    before it was encoded."""
    soon(lambda: {expr: value(run.prometheus, expr) for expr in SUMS}, SUMS)


def value(prometheus: Prometheus, expr: str) -> float | None:
    return next((float(one["value"][1]) for one in prometheus.query(expr)), None)


def test_a_lost_file_is_an_alert_that_leads_to_the_job(run: Run) -> None:
    """In three clicks: the alert's panel, the panel's link, the job."""
    until(lambda: "AtelierStoreFails" in run.prometheus.alerts(), "the alert")
    told = run.prometheus.alerts()["AtelierStoreFails"]
    address = urlsplit(told["annotations"]["dashboard_url"])
    choices = parse_qs(address.query)
    assert choices["var-model"] == ["tiny"]
    board = dashboards()[address.path.removeprefix("/d/")]
    (panel,) = (one for one in panels(board) if str(one["id"]) in choices["viewPanel"])
    link = panel["fieldConfig"]["defaults"]["links"][0]["url"]
    page = httpx.get(link.replace("${api:raw}", run.system.url), trust_env=False).json()
    assert [job["error"]["code"] for job in page["data"]] == ["store"]
