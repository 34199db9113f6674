"""Pages, logs and Prometheus of a real system: every query of every dashboard, recording rule and
alert returns data."""

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
    Query,
    dashboard_queries,
    dashboards,
    panels,
    rule_queries,
)
from tests.deploy.watching.prometheus import Prometheus
from tests.deploy.watching.workload import MARKER
from tests.e2e.monitored_system import Run, watched
from tests.e2e.system import until
from tests.service.metrics.test_front_end import check
from tools.promql import SELECTOR
from tools.reference.metrics import pages
from workers.metrics import STAGES


@pytest.fixture(scope="module")
def run(checkpoint: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with watched(checkpoint, state, tmp_path_factory.mktemp("prometheus")) as run_:
        yield run_


NOTHING_BECAUSE = {
    "the CPU runtime does not report memory": (
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
    "no video was requested": (
        "Atelier: cost / Cost of a frame / A",
        "model:atelier_frame_cost:dollars1h",
    ),
    "no autoscaler runs": ("Atelier: cost / Pools needed and present / C",),
    "no profile was recorded": ("Atelier: pools / Communication's share of a step / A",),
    "a front end is present": ("AtelierFrontEndGone",),
    "the system is younger than six hours": ("AtelierCompileCacheMisses",),
    "no safety check is configured": (
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
    "nothing is paused": ("AtelierPaused",),
    "no pool has models that take turns": ("Atelier: pools / Models that take turns / C",),
    "every image is exact": (
        "Atelier: pools / PSNR of presets / A",
        "Atelier: pools / PSNR of presets / B",
    ),
    "the catalogue has no adapters": (
        "Atelier: pools / Adapter loads / B",
        "Atelier: pools / Adapter loads / C",
    ),
}
"""Queries that have no series in this run, by reason."""


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
    """Exactly the queries of NOTHING_BECAUSE return no data."""
    queries = [*dashboard_queries("15m", "1h"), *rule_queries()]
    assert len(queries) > 100
    excused = {name for names in NOTHING_BECAUSE.values() for name in names}
    soon(lambda: nothing(run.prometheus, queries), excused)


def soon(condition: Callable[[], object], expected: object) -> None:
    """Wait for a condition: a slow scrape can hide a series for a while."""
    try:
        until(lambda: condition() == expected, "what is expected")
    except AssertionError:
        assert condition() == expected
        raise


def nothing(prometheus: Prometheus, queries: list[Query]) -> set[str]:
    """Sources of queries whose result is empty or only NaN."""
    return {
        query.by
        for query in queries
        if all(series["value"][1] == "NaN" for series in prometheus.query(query.expr))
    }


ANYWHERE = re.compile(r',?cluster=~"\.\*",namespace=~"\.\*"')
"""Matchers that every dashboard query contains."""
UNMATCHED_BECAUSE = {
    "no alert has lasted long enough": ('ALERTS{alertname=~"Atelier.+",alertstate="firing"}',),
    "the CPU runtime does not report memory": (
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
    "no video was requested": ('model:atelier_frame_cost:dollars1h{model=~".*"}',),
    "no profile was recorded": ('atelier_communication_ratio{model=~".*",instance=~".*"}',),
    "there is no alias": (
        'atelier_alias_weight{model=~".*"}',
        'atelier_alias_step_backs_total{model=~".*"}',
        'atelier_shadow_jobs_total{model=~".*"}',
        'atelier_shadow_psnr_db_bucket{model=~".*"}',
        "atelier_alias_step_backs_total",
    ),
    "nothing is paused": ("atelier_paused",),
    "no request has failed": ('atelier_http_requests_total{route=~"/v1/.+",status=~"5.."}',),
    "no autoscaler runs": (
        "kube_horizontalpodautoscaler_spec_max_replicas"
        '{horizontalpodautoscaler=~"keda-hpa-atelier-pool.*"}',
    ),
    "the catalogue has no adapters": (
        'atelier_adapter_pages{model=~".*",instance=~".*"}',
        'atelier_adapter_pages{model=~".*",instance=~".*",state="used"}',
    ),
}
"""Selectors of queries that match no series of this run, by reason."""


def test_every_queried_series_exists(run: Run) -> None:
    """Every selector matches, even where an alternative (`or`) would give data."""
    queries = [*dashboard_queries("15m", "1h"), *rule_queries()]
    selectors = {
        ANYWHERE.sub("", match[0]).replace("{}", ""): match[0]
        for query in queries
        for match in SELECTOR.finditer(query.expr)
    }
    excused = {name for names in UNMATCHED_BECAUSE.values() for name in names}
    soon(
        lambda: {name for name, query in selectors.items() if not run.prometheus.query(query)},
        excused,
    )


def test_every_series_of_a_model_leads_to_its_checkpoint(run: Run) -> None:
    """Front ends and workers export the checkpoint of each model that their series name."""
    job = run.clients.get(f"/v1/jobs/{run.jobs['first']}").json()
    for page, info, label in (
        (run.clients, "atelier_model_info", "fingerprint"),
        (run.pool, "atelier_worker_info", "checkpoint"),
    ):
        text = page.get("/metrics").text
        named = {name for name in re.findall(r'[{,]model="([^"]*)"', text) if name}
        (series,) = re.findall(rf"^{info}{{(.+)}} 1.0$", text, re.M)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', series))
        assert named == {labels["model"]} and labels[label] == job["model_fingerprint"]


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
"""Stage that these jobs lack."""
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
"""Counts that also include each job of a provocation."""


def test_the_numbers_are_those_of_the_run(run: Run) -> None:
    """Six jobs: one has three images, one was canceled and one expired in the queue, one failed
    before encoding."""
    expected = SUMS | {expr: count + run.taken for expr, count in COUNTED.items()}
    soon(lambda: {expr: value(run.prometheus, expr) for expr in expected}, expected)


def value(prometheus: Prometheus, expr: str) -> float | None:
    return next((float(sample["value"][1]) for sample in prometheus.query(expr)), None)


def test_a_lost_file_is_an_alert_that_leads_to_the_job(run: Run) -> None:
    """The alert's panel links to the failed jobs, whose addresses show the error."""
    until(lambda: "AtelierStoreFails" in run.prometheus.alerts(), "the alert")
    alert = run.prometheus.alerts()["AtelierStoreFails"]
    address = urlsplit(alert["annotations"]["dashboard_url"])
    choices = parse_qs(address.query)
    assert choices["var-model"] == ["tiny"]
    board = dashboards()[address.path.removeprefix("/d/")]
    (panel,) = (entry for entry in panels(board) if str(entry["id"]) in choices["viewPanel"])
    link = panel["fieldConfig"]["defaults"]["links"][0]["url"]
    page = run.clients.get(link.replace("${api:raw}", run.system.url)).json()
    assert [job["error"]["code"] for job in page["data"]] == ["store"]
    (job,) = page["data"]
    texts = [run.clients.get(address_).text for address_ in addresses_of(job["id"], run.system.url)]
    assert len(texts) == 2 and all("error" in entry and "store" in entry for entry in texts)


def addresses_of(job_id: str, api: str) -> list[str]:
    """Links to the API on the dashboard of one job."""
    (text_panel,) = (
        panel for panel in panels(dashboards()["atelier-path"]) if panel["type"] == "text"
    )
    paths = re.findall(r"\]\(\$\{api:raw\}([^)]+)\)", text_panel["options"]["content"])
    return [api + path.replace("${job:percentencode}", job_id) for path in paths]


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
"""Metrics without samples: on the page of a CPU pool without adapters or profiles, and of a front
end without aliases or pauses."""


def test_pages_are_complete_and_contain_no_client_text(run: Run) -> None:
    """Each page passes promtool and has exactly its documented metric families."""
    assert run.pool.get("/readyz").json() == {"status": "ok"}
    documented = pages()
    texts = {"front end": run.clients.get("/metrics").text, "pool": run.pool.get("/metrics").text}
    for page, text in texts.items():
        check(which("promtool"), text)
        families = set(re.findall(r"^# TYPE ((?:atelier|gen_ai)_\S+)", text, re.M))
        assert families == documented[page].keys()
        empty = {name for name in families if not re.search(rf"^{name}(_count)?[ {{]", text, re.M)}
        assert empty == ABSENT[page]
        assert MARKER not in text


ALLOWED = {
    "time", "level", "severity", "logger", "message", "request_id", "job", "tenant", "pool",
    "exception",
}  # fmt: skip


def test_logs_name_jobs_but_contain_no_client_text(run: Run) -> None:
    """Prompts and keys are in no log line."""
    lines = [line for line in run.system.lines if re.match(r"(front|tiny) +\|", line)]
    assert lines and MARKER not in "\n".join(run.system.lines)
    records: list[dict[str, Any]] = [json.loads(line.partition("|")[2]) for line in lines]
    for record in records:
        assert {"time", "level", "logger", "message"} <= record.keys() <= ALLOWED, record
    pool = [record for record in records if "worked on" in record["message"]]
    assert all("request_id" in record for record in records if "job" in record)
    assert pool and all(
        record["pool"] == "tiny" and record["tenant"] == "default" for record in pool
    )
    assert all(record["job"] in record["message"] for record in pool)
    front = {record["job"] for record in records if "was accepted" in record["message"]}
    assert front == {run.jobs["late"], run.jobs["canceled"], *(record["job"] for record in pool)}
    assert len(front) == len(run.jobs) + run.taken
