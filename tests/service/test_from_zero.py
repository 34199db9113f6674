"""What brings a model's first pool, and one after all have left: the queue's own numbers."""

from __future__ import annotations

import httpx

from service.jobs.queue import Queue
from tests.service.metrics.test_http import CAT, samples
from tests.service.standin import MODEL, SPEC

BACKLOG = ("atelier_queue_backlog_device_seconds", MODEL)


async def test_work_is_seen_while_no_pool_is_there(http: httpx.AsyncClient, queue: Queue) -> None:
    told = await samples(http)
    assert told["atelier_queue_up",] == 1
    assert BACKLOG not in told, "it is no queue of nothing, but none"
    assert (await http.post("/v1/generate", json=CAT)).status_code == 503

    await queue.register("pool", SPEC, ready=False)
    await queue.unregister("pool", MODEL)
    told = await samples(http)
    pools = [told[name, MODEL] for name in ("atelier_model_pools", "atelier_model_ready")]
    assert (told[BACKLOG], *pools) == (0, 0, 0)

    assert (await http.post("/v1/generate", json=CAT)).status_code == 202
    told = await samples(http)
    assert told[BACKLOG] == 1, "nobody has measured what it costs"
