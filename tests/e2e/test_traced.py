"""A real system exports traces to a real collector, and its pool is profiled.

All tests share the system; its pool has two virtual devices that split each image.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.collector import ROOT, Collector, Span, collecting
from tests.deploy.watching.files import searches
from tests.deploy.watching.prometheus import running
from tests.e2e.conftest import launch
from tests.e2e.monitored_system import POOLS_PAGE
from tests.e2e.system import ATELIER, START_S, System, environment, until

MARKER = "zz" + secrets.token_hex(8)
"""Text in every prompt."""
LONG = 1000
"""Enough steps to interrupt a job midway."""
CLOCKS_S = 0.005
"""Tolerance between Redis's and Python's clocks on one machine, rounded to microseconds."""
POOL = {
    "model": "tiny",
    "slots": 1,
    "elastic": False,
    "snapshot_share": 0.5,
    "metrics_port": 0,
}
SETTINGS = {
    "ATELIER_LOG_FORMAT": "json",
    "ATELIER_QUEUE__REAP_EVERY_S": "0.2",
    "ATELIER_QUEUE__LEASE_S": "3600",
    "ATELIER_LIMITS__MAX_STEPS": str(LONG),
    "ATELIER_POOLS": json.dumps({"tiny": POOL}),
}
TRACED = (
    "atelier_http_request_duration_seconds",
    "atelier_admission_seconds",
    "atelier_job_wait_seconds",
    "atelier_job_duration_seconds",
    "atelier_job_stage_seconds",
)
"""Histograms of front ends and pools whose exemplars are traces."""
PARTS = ("compute", "communication", "other", "waiting", "no_work")
STAGES = ["prepare", "compile", "encode", "denoise", "decode", "media", "store"]


@dataclass
class Traced:
    system: System
    state: Path
    collector: Collector
    front: httpx.Client

    def put(self, headers: Any = (), **fields: Any) -> dict[str, Any]:
        body = {"prompt": MARKER, "seed": 1, "num_inference_steps": 4, **fields}
        response = self.front.post("/v1/generate", json=body, headers=list(headers))
        assert response.is_success, response.text
        return dict(response.json())

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.front.get(f"/v1/jobs/{job_id}").json())

    def ended(self, job_id: str) -> dict[str, Any]:
        until(lambda: self.job(job_id)["state"] in ("succeeded", "failed"), "the job ends", START_S)
        return self.job(job_id)

    def tree(self, job_id: str, *names: str) -> list[Span]:
        """The trace of a job, once it contains spans of these names."""

        def is_whole() -> bool:
            present = [span.name for span in self.collector.of_job(job_id)]
            return all(present.count(name) >= names.count(name) for name in names)

        until(is_whole, f"spans {names}")
        return self.collector.of_job(job_id)

    def profile(self, *arguments: str) -> subprocess.Popen[str]:
        command = [*ATELIER, "profile", "--pool", "tiny", "--state", str(self.state), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())

    @property
    def pool_address(self) -> str:
        matches = (re.search(POOLS_PAGE, line) for line in self.system.lines)
        *_, port = (match[1] for match in matches if match)
        return f"127.0.0.1:{port}"

    def pool_page(self) -> str:
        return httpx.get(f"http://{self.pool_address}/metrics", trust_env=False).text


@pytest.fixture(scope="module")
def traced(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    state = tmp_path_factory.mktemp("traced")
    with collecting() as collector:
        split = ("--host-devices", "2", "--mesh", "context=2")
        tracing = {"ATELIER_TRACING__ENDPOINT": collector.url}
        system = launch(state, checkpoint, *split, **SETTINGS, **tracing)
        try:
            with httpx.Client(base_url=system.url, timeout=90, trust_env=False) as front:
                yield Traced(system, state, collector, front)
        finally:
            system.close()


def check_whole(spans: list[Span], outside: str = ROOT) -> None:
    """Check that every span except the first has its parent in the trace and starts after it.

    Args:
        outside: parent of the first span, from outside the trace.
    """
    ids = {span.id for span in spans}
    assert len(ids) == len(spans)
    above = [span for span in spans if span.parent not in ids]
    assert [span.parent for span in above] == [outside]
    by_id = {span.id: span for span in spans}
    for span in spans:
        assert span.start <= span.end, span.name
        if span.parent in by_id:
            assert span.start >= by_id[span.parent].start - CLOCKS_S, span.name


def below(spans: list[Span], parent: Span) -> list[Span]:
    return [span for span in spans if span.parent == parent.id]


def one(spans: list[Span], name: str) -> Span:
    (span_,) = (span for span in spans if span.name == name)
    return span_


def test_a_jobs_trace_is_whole(traced: Traced) -> None:
    """The trace leads from the client's span through request, queue and pool to the store, in
    order."""
    trace, parent = secrets.token_hex(16), secrets.token_hex(8)
    headers = [("traceparent", f"00-{trace}-{parent}-01"), ("Prefer", "wait=60")]
    job = traced.put(headers, num_images=2)
    assert job["state"] == "succeeded"
    spans = traced.tree(job["id"], "POST /v1/generate", "finish", "attempt")
    check_whole(spans, outside=parent)
    request = one(spans, "POST /v1/generate")
    assert (request.trace, request.service) == (trace, "atelier-frontend")
    assert request.attributes["http.response.status_code"] == 200
    admission, queue, attempt = below(spans, request)
    assert [admission.name, queue.name, attempt.name] == ["admission", "queue", "attempt"]
    assert queue.end <= attempt.start + CLOCKS_S
    assert {queue.service, attempt.service} == {"atelier-pool"}
    for span in (admission, queue, attempt):
        assert span.attributes["atelier.job.id"] == job["id"]
        assert span.attributes["gen_ai.request.model"] == "tiny"
        assert span.attributes["atelier.tenant"] == "default"
    assert attempt.attributes["atelier.outcome"] == "succeeded"
    assert attempt.attributes["atelier.pool"].startswith("tiny-")
    *stages, finish = below(spans, attempt)
    assert finish.name == "finish"
    for image in (0, 1):
        image_spans = [span for span in stages if span.attributes["atelier.image"] == image]
        assert [span.name for span in image_spans] == STAGES
        for before, after in pairwise(image_spans[:-1]):  # media and store alternate, file by file
            assert before.end <= after.start + CLOCKS_S, (before.name, after.name)
        denoise = one(image_spans, "denoise")
        assert denoise.attributes["atelier.steps"] == 4
        assert [name for name, _ in denoise.events] == ["step"] * 4
    assert all(span.error is None for span in spans)
    check_searches(spans)


def check_searches(spans: list[Span]) -> None:
    """Any job's trace contains what the dashboards search for in Jaeger."""
    queries = searches()
    assert len(queries) > 7
    for query in queries:
        matches = [span for span in spans if span.service == query["service"]]
        matches = [span for span in matches if query.get("operation", span.name) == span.name]
        tags = json.loads(query.get("tags", "{}"))
        assert any(tags.keys() <= span.attributes.keys() for span in matches), query


def test_prometheus_leads_from_a_latency_to_its_trace(traced: Traced, tmp_path: Path) -> None:
    """Uses a real Prometheus with the feature flags of compose's."""
    since, trace = time.time() - 60, secrets.token_hex(16)
    targets = {
        "atelier-frontend": [traced.system.url.removeprefix("http://")],
        "atelier-pools": [traced.pool_address],
    }
    with running(tmp_path, targets) as prometheus:
        headers = [("traceparent", f"00-{trace}-{'1' * 16}-01"), ("Prefer", "wait=60")]
        assert traced.put(headers)["state"] == "succeeded"

        def traces_of(histogram: str) -> set[str]:
            exemplars = prometheus.exemplars(f"{histogram}_bucket", since, time.time())
            return {entry["labels"]["trace_id"] for entry in exemplars}

        for histogram in TRACED:
            until(lambda name=histogram: trace in traces_of(name), f"{histogram}'s exemplar")
        assert {entry["value"][1] for entry in prometheus.query("up")} == {"1"}
    assert trace in traced.collector.traces()


def job_of_a_killed_pool(traced: Traced) -> dict[str, Any]:
    """Submit jobs until a pool is killed during one, after its snapshot; jobs that end before are
    retried."""
    while True:
        job = traced.put(num_inference_steps=LONG)

        def is_kept_or_over(job_id: str = job["id"]) -> bool:
            snapshots = list(traced.state.glob(f"outputs/snapshots/{job_id}/*"))
            return bool(snapshots) or traced.job(job_id)["state"] == "succeeded"

        until(is_kept_or_over, "a snapshot")
        traced.tree(job["id"], "encode")
        if traced.system.kill_pool(traced.state, job["id"]):
            return job


def test_a_killed_pools_job_shows_both_attempts(traced: Traced) -> None:
    """The front end that requeues the job exports the lost attempt's span."""
    job = job_of_a_killed_pool(traced)
    assert traced.ended(job["id"])["state"] == "succeeded"
    spans = traced.tree(job["id"], "attempt", "attempt", "finish")
    check_whole(spans)
    first, second = (span for span in spans if span.name == "attempt")
    assert (first.attributes["atelier.attempt"], first.error) == (1, "lost")
    assert (second.attributes["atelier.attempt"], second.error) == (2, None)
    assert first.attributes["atelier.pool"] != second.attributes["atelier.pool"]
    assert first.service == "atelier-frontend" and second.service == "atelier-pool"
    assert first.start < first.end <= second.start + CLOCKS_S
    waits = [span.attributes["atelier.attempt"] for span in spans if span.name == "queue"]
    assert waits == [1, 2]
    assert one(below(spans, first), "encode").service == "atelier-pool"
    denoise = one(below(spans, second), "denoise")
    assert denoise.attributes["atelier.steps.before"] > 0, "it went on from a snapshot"
    assert [name for name, _ in second.events] == ["earlier worker crash"]


def test_refused_or_hostile_trace_headers_are_ignored(traced: Traced) -> None:
    valid, twice = secrets.token_hex(16), secrets.token_hex(16)
    hostile = (f"00-{'0' * 32}-{'1' * 16}-01", "zz" * 5000, MARKER, f"00-{valid}-{MARKER}-01")
    headers = [[("traceparent", text)] for text in hostile]
    headers.append([("traceparent", f"00-{twice}-{'1' * 16}-01")] * 2)
    wait = ("Prefer", "wait=60")
    jobs = [traced.put([*header, wait])["id"] for header in headers]
    for job in jobs:
        spans = traced.tree(job, "attempt", "finish", "POST /v1/generate")
        check_whole(spans)
    assert not {valid, twice} & traced.collector.traces().keys()
    not_sampled = secrets.token_hex(16)
    quiet = [("traceparent", f"00-{not_sampled}-{'1' * 16}-00"), wait]
    traced.put(quiet)
    refused = traced.front.post("/v1/generate", json={"prompt": MARKER, "width": MARKER})
    assert refused.status_code == 422

    def is_told() -> bool:
        all_spans = [span for spans in traced.collector.traces().values() for span in spans]
        return any(span.error == "invalid_request" for span in all_spans)

    until(is_told, "the refusal")
    assert not_sampled not in traced.collector.traces()
    assert MARKER.encode() not in traced.collector.raw
    lines = [json.loads(line.partition("|")[2]) for line in traced.system.lines if '"job"' in line]
    trace_ids = {line["job"]: line["trace_id"] for line in lines if "ended" in line["message"]}
    assert trace_ids[job] == spans[0].trace


def test_a_running_pool_is_profiled(traced: Traced, tmp_path: Path) -> None:
    """The pool continues meanwhile, and its outputs do not change."""
    idle = traced.profile("--seconds", "1").communicate()
    assert "denoised nothing" in idle[1]
    unknown = traced.profile("--pool", "none").communicate()
    assert "no pool 'none' is running here; there is tiny-" in unknown[1]
    unprofiled = traced.ended(traced.put(num_inference_steps=50)["id"])
    profile = traced.profile("--steps", "20", "--json", "--wait", "60", "--output", str(tmp_path))
    traced.system.wait_for("a profile of 20 steps is taken")
    busy = traced.profile().communicate()
    assert "is being profiled already" in busy[1]
    while profile.poll() is None:  # a job may end before the recording begins
        watched = traced.ended(traced.put(num_inference_steps=50)["id"])
        assert watched["outputs"][0]["sha256"] == unprofiled["outputs"][0]["sha256"]
        assert watched["state"] == "succeeded"
    output, error_text = profile.communicate()
    assert profile.returncode == 0, error_text
    report = json.loads(output)
    assert (report["devices"], report["steps"]) == (2, 20)
    assert sum(report[f"{part}_s"] for part in PARTS) == pytest.approx(report["window_s"], rel=1e-9)
    assert report["compute_s"] > 0 and report["communication_s"] > 0
    assert {"compute", "communication"} <= {op["kind"] for op in report["top"]}
    assert sorted(path.suffix for path in tmp_path.rglob("*.*") if path.is_file()) == [".gz", ".pb"]
    assert not (traced.state / "outputs" / "profiles").exists()
    page = traced.pool_page()
    share = re.search(r'^atelier_communication_ratio{model="tiny"} (\S+)$', page, re.M)
    assert share and float(share[1]) == pytest.approx(report["share"])
