"""Counters from the ledger: 0 at first, equal to Redis, and absent while Redis is unreachable."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from service.jobs.model.job import Usage
from service.jobs.queue import Queue
from tests.service.jobs.examples import an_output
from tests.service.standin import MODEL, SPEC

BY_CLASS = {"model": MODEL, "tenant_class": "default"}


async def metric_value(http: httpx.AsyncClient, metric: str, **labels: str) -> float | None:
    page = (await http.get("/metrics")).text
    named = dict(sorted((BY_CLASS | labels).items()))
    prefix = f"{metric}{{" + ",".join(f'{name}="{value}"' for name, value in named.items()) + "}"
    values = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(prefix)]
    return float(values[0]) if values else None


async def succeed(queue: Queue, http: httpx.AsyncClient) -> None:
    await http.post("/v1/generate", json={"prompt": "a cat"})
    (claim,) = await queue.claim("pool", MODEL, 1)
    await queue.finish(claim, [an_output(claim.job)], Usage(steps=1, device_seconds=2.5))


async def test_delivered_and_used_totals_of_a_job(queue: Queue, http: httpx.AsyncClient) -> None:
    await queue.register("pool", SPEC, ready=True)
    paid = {"outcome": "succeeded", "payer": "tenant"}
    for count in range(3):
        assert await metric_value(http, "atelier_images_total") == count
        assert await metric_value(http, "atelier_ledger_jobs_total", outcome="succeeded") == count
        assert await metric_value(http, "atelier_job_device_seconds_total", **paid) == 2.5 * count
        assert await metric_value(http, "atelier_frames_total") == 0
        assert f"atelier_ledger_pending_records {float(count)}" in (await http.get("/metrics")).text
        await succeed(queue, http)


async def test_new_front_end_exports_the_same_ledger(
    queue: Queue, http: httpx.AsyncClient, app: FastAPI
) -> None:
    await queue.register("pool", SPEC, ready=True)
    await succeed(queue, http)
    app.state.front.telemetry.ledger.clear()
    assert await metric_value(http, "atelier_images_total") == 1


async def test_no_ledger_metrics_without_redis(
    queue: Queue, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.register("pool", SPEC, ready=True)
    await succeed(queue, http)

    async def away() -> None:
        raise OSError

    monkeypatch.setattr(queue, "depths", away)
    assert await metric_value(http, "atelier_images_total") is None
