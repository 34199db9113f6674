"""Metrics that scale a model from zero: the backlog, before a first worker and after the last has
left."""

from __future__ import annotations

import httpx

from service.jobs.queue import Queue
from tests.service.metrics.test_front_end import CAT, samples
from tests.service.standin import MODEL, SPEC

BACKLOG = ("atelier_queue_backlog_device_seconds", MODEL)


async def test_backlog_is_exported_without_pools(http: httpx.AsyncClient, queue: Queue) -> None:
    metrics = await samples(http)
    assert metrics["atelier_queue_up",] == 1
    assert BACKLOG not in metrics, "no series before a model is registered"
    assert (await http.post("/v1/generate", json=CAT)).status_code == 503

    await queue.register("pool", SPEC, ready=False)
    await queue.unregister("pool", MODEL)
    metrics = await samples(http)
    pools = [metrics[name, MODEL] for name in ("atelier_model_pools", "atelier_model_ready")]
    assert (metrics[BACKLOG], *pools) == (0, 0, 0)

    assert (await http.post("/v1/generate", json=CAT)).status_code == 202
    metrics = await samples(http)
    assert metrics[BACKLOG] == 1, "default cost without measurements"
