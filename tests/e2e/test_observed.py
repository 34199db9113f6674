"""A real system, watched: its pages, what they count, and what it logs."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.metrics_page import pages
from tests.e2e.conftest import launch
from tests.e2e.system import System, until
from tests.service.standin import picture
from tests.service.test_telemetry import check
from workers.metrics import STAGES

MARKER = "zz" + secrets.token_hex(8)
"""In every prompt, and wherever else a client may write something."""
PNG = base64.b64encode(picture(size=(64, 64))).decode()
ALLOWED = {"time", "level", "severity", "logger", "message", "job", "tenant", "pool", "exception"}
ABSENT = {
    "atelier_peak_flops", "atelier_communication_ratio", "atelier_device_memory_bytes",
}  # fmt: skip
"""Of a CPU's pool that nobody has profiled."""
TENANT = {"metrics_class": "gold"}
SETTINGS = {
    "ATELIER_LOG_LEVEL": "debug",
    "ATELIER_LOG_FORMAT": "json",
    "ATELIER_TENANTS": json.dumps({"default": TENANT}),
    "ATELIER_POOLS": json.dumps(
        {"tiny": {"model": "tiny", "slots": 2, "metrics_port": 0, "snapshot_share": 0}}
    ),
    "ATELIER_QUEUE__REAP_EVERY_S": "0.2",
}


@dataclass
class Watched:
    state: Path
    system: System
    front: httpx.Client
    pool: httpx.Client

    def page(self, which: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        answer = getattr(self, which).get("/metrics")
        assert answer.status_code == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def value(self, name: str, page: str = "both", **labels: str) -> float:
        """The sum of the samples with at least these labels."""
        pages = ("front", "pool") if page == "both" else (page,)
        found = [
            value
            for each in pages
            for (sample, told), value in self.page(each).items()
            if sample == name and labels.items() <= dict(told).items()
        ]
        assert found, f"{name} {labels} is on no page"
        return sum(found)

    def put(self, **fields: Any) -> str:
        """The id of a job that is not waited for."""
        body = {"prompt": MARKER, **fields}
        return str(self.front.post("/v1/generate", json=body).json()["id"])

    def state_of(self, job_id: str) -> str:
        return str(self.front.get(f"/v1/jobs/{job_id}").json()["state"])

    def generate(self, **fields: Any) -> dict[str, Any]:
        wait = {"Prefer": "wait=60"}
        body = {"prompt": MARKER, "seed": 1, "num_inference_steps": 2, **fields}
        return self.front.post("/v1/generate", json=body, headers=wait).json()


@pytest.fixture(scope="module")
def watched(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    state = tmp_path_factory.mktemp("watched")
    system = launch(state, checkpoint, **SETTINGS)
    try:
        told = system.wait_for(r"health and metrics are told on port (\d+)")
        with httpx.Client(
            base_url=f"http://127.0.0.1:{told[1]}", timeout=30, trust_env=False
        ) as pool:
            check_starting(pool)
            with httpx.Client(base_url=system.url, timeout=90, trust_env=False) as front:
                yield Watched(state, system, front, pool)
    finally:
        system.close()


def check_starting(pool: httpx.Client) -> None:
    """It is alive from the first moment, long before it is ready."""
    assert pool.get("/healthz").json() == {"status": "ok"}
    ready = pool.get("/readyz")
    assert ready.status_code == 503 and int(ready.headers["retry-after"]) > 0
    assert ready.json()["detail"].startswith("it ")


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


def test_a_systems_life_is_counted_and_told(watched: Watched) -> None:
    """Jobs succeed, fail, are canceled and expire; prompts and keys are in no line of any log."""
    assert watched.pool.get("/readyz").json() == {"status": "ok"}
    assert watched.generate(deadline_s=600)["state"] == "succeeded"
    assert watched.generate(num_images=3)["state"] == "succeeded"
    stopped = while_nobody_claims(watched)
    accepted = 2 + len(stopped) + provoke(watched)
    ended = {
        outcome: watched.value("atelier_jobs_ended_total", outcome=outcome)
        for outcome in ("succeeded", "failed", "canceled", "expired")
    }
    assert sum(ended.values()) == accepted
    assert (ended["failed"], ended["canceled"], ended["expired"]) == (1, 1, 1)
    assert watched.value("atelier_job_duration_seconds_count") == accepted
    assert watched.value("atelier_jobs_accepted_total", "front", tenant_class="gold") == accepted
    assert watched.value("atelier_job_deadlines_total", outcome="met") == 1
    assert watched.value("atelier_job_deadlines_total", outcome="missed") == 1
    claimed = accepted - 2
    assert watched.value("atelier_job_wait_seconds_count", "pool") == claimed
    for stage in STAGES:
        made = watched.value("atelier_job_stage_seconds_count", stage=stage)
        assert made == ended["succeeded"] + 2, stage
    assert watched.value("atelier_output_bytes_total", content_type="image/png") > 0
    assert watched.value("atelier_flops_total") > 0
    assert watched.value("atelier_queue_backlog_device_seconds") == 0
    check_pages(watched)
    check_logs(watched, stopped)


def provoke(watched: Watched) -> int:
    """How many of the provocations were taken."""
    taken = []
    for request in PROVOCATIONS:
        headers = {"Prefer": "wait=60"} | request.get("headers", {})
        answer = watched.front.post("/v1/generate", **{**request, "headers": headers})
        taken.append(answer.is_success)
    watched.front.get(f"/{MARKER}", params={"prompt": MARKER})
    watched.front.get(f"/v1/jobs/{MARKER}")
    watched.pool.get(f"/{MARKER}?{MARKER}")
    assert not all(taken)
    return sum(taken)


def while_nobody_claims(watched: Watched) -> list[str]:
    """Of a pool that stands still: a job that expires, one that is canceled, and one that fails
    when the pool goes on, since its picture has gone."""
    worker = watched.system.child("worker")
    os.kill(worker, signal.SIGSTOP)
    try:
        late = watched.put(num_inference_steps=1, deadline_s=2)
        canceled, failed = watched.put(), watched.put(image=PNG)
        assert watched.value("atelier_queue_backlog_device_seconds", "front") > 0
        watched.front.post(f"/v1/jobs/{canceled}/cancel")
        shutil.rmtree(watched.state / "outputs" / "inputs" / failed)
        expired = 'outcome="expired",tenant_class="gold"} 1.0'
        until(lambda: expired in watched.front.get("/metrics").text, "it expires")
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: watched.state_of(failed) == "failed", "it fails")
    return [late, canceled, failed]


def check_pages(watched: Watched) -> None:
    """`promtool` has no objection, and each page has the families that are documented for it."""
    for page, documented in zip(("front", "pool"), pages().values(), strict=True):
        text = getattr(watched, page).get("/metrics").text
        check(which("promtool"), text)
        told = set(re.findall(r"^# TYPE (atelier_\S+)", text, re.M))
        assert told == documented.keys()
        empty = {name for name in told if not re.search(rf"^{name}(_count)?[ {{]", text, re.M)}
        assert empty == (ABSENT if page == "pool" else set())
    assert MARKER not in text


def check_logs(watched: Watched, jobs: list[str]) -> None:
    lines = [line for line in watched.system.lines if re.match(r"(front|tiny) +\|", line)]
    assert lines and MARKER not in "\n".join(watched.system.lines)
    told = [json.loads(line.partition("|")[2]) for line in lines]
    for one in told:
        assert {"time", "level", "logger", "message"} <= one.keys() <= ALLOWED, one
    pool = [one for one in told if "worked on" in one["message"]]
    assert pool and all(one["pool"] == "tiny" and one["tenant"] == "default" for one in pool)
    assert all(one["job"] in one["message"] for one in pool)
    front = [one for one in told if "was accepted" in one["message"]]
    assert {*jobs, *(one["job"] for one in pool)} == {one["job"] for one in front}
