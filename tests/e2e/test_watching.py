"""What watches a real system: its pages and logs, and the project's Prometheus, which scrapes it:
every query of every dashboard, recording rule and alert gives data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.deploy.watching.files import (
    Asked,
    asked_by_dashboards,
    asked_by_rules,
    dashboards,
    panels,
)
from tests.deploy.watching.prometheus import Prometheus
from tests.deploy.watching.workload import MARKER
from tests.e2e.system import until
from tests.e2e.watched import Run, watched
from tests.service.metrics.test_http import check
from tools.promql import SELECTOR
from tools.reference.metrics import pages
from workers.metrics import STAGES


@pytest.fixture(scope="module")
def run(checkpoint: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with watched(checkpoint, state, tmp_path_factory.mktemp("prometheus")) as found:
        yield found


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
        "Atelier: cost / MFU over paid time / A",
        "model:atelier_paid_mfu:ratio1h",
    ),
    "nobody has asked for a video": (
        "Atelier: cost / Cost of a frame / A",
        "model:atelier_frame_cost:dollars1h",
    ),
    "no autoscaler is there": ("Atelier: cost / Pools needed, and there / C",),
    "nobody has taken a profile": ("Atelier: pools / Communication's share of a step / A",),
    "a front end is there": ("AtelierFrontEndGone",),
    "the system is younger than six hours": ("AtelierCompileCacheMisses",),
    "nobody has set a safety check": (
        "Atelier: service / Time of a safety check / A",
        "Atelier: service / Time of a safety check / B",
    ),
    "there is no alias": (
        "Atelier: service / Weights of versions / A",
        "Atelier: service / Weights of versions / B",
        "Atelier: service / Shadows / A",
        "Atelier: service / PSNR of shadows that differ / A",
        "Atelier: service / PSNR of shadows that differ / B",
        "AtelierVersionSteppedBack",
    ),
    "nobody has paused anything": ("AtelierPaused",),
    "no pool has models by turns": ("Atelier: pools / Models by turns / C",),
    "every image is exact": (
        "Atelier: pools / PSNR that presets kept / A",
        "Atelier: pools / PSNR that presets kept / B",
    ),
    "the catalogue has no adapters": (
        "Atelier: pools / Adapters brought to the chip / B",
        "Atelier: pools / Adapters brought to the chip / C",
    ),
}
"""Who legitimately gets no series of this run, by the reason."""


def test_the_run_had_all_kinds_of_ends(run: Run) -> None:
    assert run.ends == {
        "first": "succeeded",
        "late": "expired",
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


ANYWHERE = re.compile(r',?cluster=~"\.\*",namespace=~"\.\*"')
"""What every query of a dashboard has besides."""
UNMATCHED_BECAUSE = {
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
        'model:atelier_paid_mfu:ratio1h{model=~".*"}',
    ),
    "nobody has asked for a video": ('model:atelier_frame_cost:dollars1h{model=~".*"}',),
    "nobody has taken a profile": ('atelier_communication_ratio{model=~".*",instance=~".*"}',),
    "there is no alias": (
        'atelier_alias_weight{model=~".*"}',
        'atelier_alias_step_backs_total{model=~".*"}',
        'atelier_shadow_jobs_total{model=~".*"}',
        'atelier_shadow_psnr_db_bucket{model=~".*"}',
        "atelier_alias_step_backs_total",
    ),
    "nobody has paused anything": ("atelier_paused",),
    "no request has failed": ('atelier_http_requests_total{route=~"/v1/.+",status=~"5.."}',),
    "no autoscaler is there": (
        "kube_horizontalpodautoscaler_spec_max_replicas"
        '{horizontalpodautoscaler=~"keda-hpa-atelier-pool.*"}',
    ),
    "the catalogue has no adapters": (
        'atelier_adapter_pages{model=~".*",instance=~".*"}',
        'atelier_adapter_pages{model=~".*",instance=~".*",state="used"}',
    ),
}
"""Series that queries ask for and this run has not, by the reason."""


def test_every_series_that_is_asked_for_is_there(run: Run) -> None:
    """Also those beside which there is another one (`or`), so that the query gives data."""
    asked = [*asked_by_dashboards("15m", "1h"), *asked_by_rules()]
    named = {
        ANYWHERE.sub("", found[0]).replace("{}", ""): found[0]
        for one in asked
        for found in SELECTOR.finditer(one.expr)
    }
    excused = {name for names in UNMATCHED_BECAUSE.values() for name in names}
    soon(lambda: {name for name, one in named.items() if not run.prometheus.query(one)}, excused)


SUMS = {
    'sum(atelier_jobs_ended_total{outcome="failed"})': 1,
    'sum(atelier_jobs_ended_total{outcome="canceled"})': 1,
    'sum(atelier_jobs_ended_total{outcome="expired"})': 1,
    'sum(atelier_job_failures_total{reason="store"})': 1,
    "sum(atelier_job_failures_total)": 1,
    'sum(atelier_job_deadlines_total{outcome="met"})': 1,
    'sum(atelier_job_deadlines_total{outcome="missed"})': 1,
    'sum(atelier_jobs_refused_total{reason="deadline_too_soon"})': 1,
    "atelier_queue_backlog_device_seconds": 0,
    'sum(atelier_output_bytes_total{content_type="image/png"}) > bool 0': 1,
    "atelier_flops_total > bool 0": 1,
}
UPSCALE = "upscale"
"""Stage of which these jobs have none."""
COUNTED = {
    'sum(atelier_jobs_ended_total{outcome="succeeded"})': 3,
    'sum(atelier_jobs_accepted_total{tenant_class="gold"})': 6,
    "sum(atelier_job_duration_seconds_count)": 6,
    "sum(atelier_ledger_jobs_total)": 6,
    "atelier_ledger_pending_records": 6,
    "sum(atelier_images_total)": 5,
    'sum(atelier_job_wait_seconds_count{job="atelier-pools"})': 4,
    "sum(atelier_admission_seconds_count)": 6,
} | {
    f'sum(atelier_job_stage_seconds_count{{stage="{stage}"}})': 5
    for stage in STAGES
    if stage != UPSCALE
}
"""And one more for each job of a provocation."""


def test_the_numbers_are_those_of_the_run(run: Run) -> None:
    """Of six jobs, one of which has three images, one was canceled in the queue, one expired
    there, and one failed before it was encoded."""
    expected = SUMS | {expr: count + run.taken for expr, count in COUNTED.items()}
    soon(lambda: {expr: value(run.prometheus, expr) for expr in expected}, expected)


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
    page = run.clients.get(link.replace("${api:raw}", run.system.url)).json()
    assert [job["error"]["code"] for job in page["data"]] == ["store"]
    (job,) = page["data"]
    found = [run.clients.get(at).text for at in addresses_of(job["id"], run.system.url)]
    assert len(found) == 2 and all("error" in one and "store" in one for one in found)


def addresses_of(job_id: str, api: str) -> list[str]:
    """Where the dashboard on one job's path leads to, at the API."""
    (how,) = (one for one in panels(dashboards()["atelier-path"]) if one["type"] == "text")
    found = re.findall(r"\]\(\$\{api:raw\}([^)]+)\)", how["options"]["content"])
    return [api + path.replace("${job:percentencode}", job_id) for path in found]


ABSENT = {
    "pool": {
        "atelier_peak_flops", "atelier_communication_ratio", "atelier_device_memory_bytes",
        "atelier_adapter_pages",
    },
    "front end": {
        "atelier_alias_weight", "atelier_alias_step_backs_total", "atelier_shadow_jobs_total",
        "atelier_shadow_psnr_db", "atelier_paused",
    },
}  # fmt: skip
"""Metrics without a sample: on the page of a CPU's pool without adapters that nobody profiled, and
of a front end without aliases, where nobody has paused anything."""


def test_pages_are_whole_and_say_nothing_of_what_clients_wrote(run: Run) -> None:
    """`promtool` has no objection, and each page has the families that are documented for it."""
    assert run.pool.get("/readyz").json() == {"status": "ok"}
    documented = pages()
    texts = {"front end": run.clients.get("/metrics").text, "pool": run.pool.get("/metrics").text}
    for page, text in texts.items():
        check(which("promtool"), text)
        told = set(re.findall(r"^# TYPE ((?:atelier|gen_ai)_\S+)", text, re.M))
        assert told == documented[page].keys()
        empty = {name for name in told if not re.search(rf"^{name}(_count)?[ {{]", text, re.M)}
        assert empty == ABSENT[page]
        assert MARKER not in text


ALLOWED = {
    "time", "level", "severity", "logger", "message", "request_id", "job", "tenant", "pool",
    "exception",
}  # fmt: skip


def test_logs_tell_of_jobs_and_of_nothing_that_clients_wrote(run: Run) -> None:
    """Prompts and keys are in no line of any log."""
    lines = [line for line in run.system.lines if re.match(r"(front|tiny) +\|", line)]
    assert lines and MARKER not in "\n".join(run.system.lines)
    told: list[dict[str, Any]] = [json.loads(line.partition("|")[2]) for line in lines]
    for one in told:
        assert {"time", "level", "logger", "message"} <= one.keys() <= ALLOWED, one
    pool = [one for one in told if "worked on" in one["message"]]
    assert all("request_id" in one for one in told if "job" in one)
    assert pool and all(one["pool"] == "tiny" and one["tenant"] == "default" for one in pool)
    assert all(one["job"] in one["message"] for one in pool)
    front = {one["job"] for one in told if "was accepted" in one["message"]}
    assert front == {run.jobs["late"], run.jobs["canceled"], *(one["job"] for one in pool)}
    assert len(front) == len(run.jobs) + run.taken
