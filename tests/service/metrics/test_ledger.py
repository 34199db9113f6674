"""The ledger's counters: told with 0, as Redis has them, and not at all while it is away."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from service.jobs.model.job import Usage
from service.jobs.queue import Queue
from tests.service.jobs.examples import an_output
from tests.service.standin import MODEL, SPEC

BY_CLASS = {"model": MODEL, "tenant_class": "default"}


async def told(http: httpx.AsyncClient, metric: str, **labels: str) -> float | None:
    page = (await http.get("/metrics")).text
    named = dict(sorted((BY_CLASS | labels).items()))
    wanted = f"{metric}{{" + ",".join(f'{name}="{value}"' for name, value in named.items()) + "}"
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(wanted)]
    return float(found[0]) if found else None


async def succeed(queue: Queue, http: httpx.AsyncClient) -> None:
    await http.post("/v1/generate", json={"prompt": "a cat"})
    (claim,) = await queue.claim("pool", MODEL, 1)
    await queue.finish(claim, [an_output(claim.job)], Usage(steps=1, device_seconds=2.5))


async def test_what_a_job_delivered_and_used(queue: Queue, http: httpx.AsyncClient) -> None:
    await queue.register("pool", SPEC, ready=True)
    paid = {"outcome": "succeeded", "payer": "tenant"}
    for count in range(3):
        assert await told(http, "atelier_images_total") == count
        assert await told(http, "atelier_ledger_jobs_total", outcome="succeeded") == count
        assert await told(http, "atelier_job_device_seconds_total", **paid) == 2.5 * count
        assert await told(http, "atelier_frames_total") == 0
        assert f"atelier_ledger_pending_records {float(count)}" in (await http.get("/metrics")).text
        await succeed(queue, http)


async def test_a_front_end_that_comes_later_tells_the_same(
    queue: Queue, http: httpx.AsyncClient, app: FastAPI
) -> None:
    await queue.register("pool", SPEC, ready=True)
    await succeed(queue, http)
    app.state.front.telemetry.ledger.away()
    assert await told(http, "atelier_images_total") == 1


async def test_nothing_is_told_while_redis_is_away(
    queue: Queue, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.register("pool", SPEC, ready=True)
    await succeed(queue, http)

    async def away() -> None:
        raise OSError

    monkeypatch.setattr(queue, "totals", away)
    assert await told(http, "atelier_images_total") is None
