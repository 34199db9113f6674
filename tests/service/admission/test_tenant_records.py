"""Tenant records that change in Redis while the front end serves."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from service.jobs.queue import Queue
from service.jobs.tenants import TenantRecords
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.standin import MODEL, SPEC

CAT = {"prompt": "a cat", "model": MODEL}
TENANT = "default"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    limits = TenantSettings(max_queued=1)
    return settings.model_copy(update={"tenants": {TENANT: limits}})


async def test_a_quota_changes_while_requests_come(http: httpx.AsyncClient, queue: Queue) -> None:
    records = TenantRecords(queue.redis)
    await queue.register("cold", SPEC, ready=False)
    assert (await http.post("/v1/generate", json=CAT)).status_code == 202
    assert (await http.post("/v1/generate", json=CAT)).status_code == 429
    new = TenantSettings(max_queued=2, weight=4, max_compiling=3, metrics_class="gold")
    await records.change(lambda _: {TENANT: new})
    answer = await http.post("/v1/generate", json=CAT)
    assert answer.status_code == 202 and '"queued";q=2' in answer.headers["ratelimit-policy"]
    job = await queue.get(answer.json()["id"])
    assert job is not None
    assert (job.weight, job.max_compiling, job.tenant_class) == (4, 3, "gold")
    await records.change(lambda _: {})
    answer = await http.post("/v1/generate", json=CAT)
    assert answer.status_code == 429 and '"queued";q=1' in answer.headers["ratelimit-policy"]


async def test_a_new_class_is_counted_from_the_start(
    http: httpx.AsyncClient, app: FastAPI, queue: Queue
) -> None:
    """The counters of a new tenant class start at once, including the rejection of a body before
    any other request."""
    await queue.register("cold", SPEC, ready=False)
    gold = TenantSettings(metrics_class="gold")
    await TenantRecords(queue.redis).change(lambda _: {TENANT: gold})
    assert (await http.post("/v1/generate", json={"promt": "a cat"})).status_code == 422
    counted = [
        sample
        for metric in app.state.front.telemetry.refused.collect()
        for sample in metric.samples
        if sample.value and sample.name.endswith("_total")
    ]
    assert [sample.labels["tenant_class"] for sample in counted] == ["gold"]
    page = (await http.get("/metrics")).text.splitlines()
    (line,) = [line for line in page if "jobs_accepted_total{" in line and '"gold"' in line]
    assert f'model="{MODEL}"' in line and line.endswith(" 0.0")
