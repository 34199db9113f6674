"""Liveness, readiness and metrics, also without Redis or a store."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from deploy.local.embedded_redis import embedded
from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.redis.connection import COMMAND_TIMEOUT_S
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.settings import Settings
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SPEC, StandIn

CAT = {"prompt": "a cat", "model": MODEL}


def checks(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    return [reason["check"] for reason in answer.json()["reasons"]]


async def test_healthz_answers(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok"}


async def test_ready_with_a_ready_pool(http: httpx.AsyncClient, queue: Queue) -> None:
    assert checks(await http.get("/readyz")) == ["models"]
    await queue.register("pool", SPEC, ready=False)
    assert checks(await http.get("/readyz")) == ["pools"]
    await queue.register("pool", SPEC, ready=True)
    assert (await http.get("/readyz")).json() == {"status": "ok"}


async def test_readiness_can_check_only_redis(http: httpx.AsyncClient) -> None:
    """Readiness without workers, which only a request for their model would start."""
    assert checks(await http.get("/readyz")) == ["models"]
    assert (await http.get("/readyz?only=redis")).json() == {"status": "ok"}


async def test_another_check_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.get("/readyz?only=pools")
    assert answer.status_code == 422
    assert "redis" in answer.text


@pytest.mark.parametrize("setting", [("min-replicas-to-write", 1, 0), ("maxmemory", 1, 0)])
async def test_read_only_redis_is_reported_as_unreachable(
    http: httpx.AsyncClient, queue: Queue, empty_redis: Redis, setting: tuple[str, int, int]
) -> None:
    name, bad_value, good_value = setting
    await queue.register("pool", SPEC, ready=True)
    await empty_redis.config_set(name, bad_value)
    try:
        refused = await http.post("/v1/generate", json=CAT)
    finally:
        await empty_redis.config_set(name, good_value)
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
    assert refused.json()["error"]["code"] == "queue_unreachable"
    assert (await http.post("/v1/generate", json=CAT)).status_code == 202


async def test_a_redis_at_its_memory_limit_is_not_ready(
    http: httpx.AsyncClient, queue: Queue, empty_redis: Redis
) -> None:
    await queue.register("pool", SPEC, ready=True)
    assert [*await redis_memory(http)] == ["used"]
    await empty_redis.config_set("maxmemory", 2**40)
    try:
        is_ready = await http.get("/readyz?only=redis")
        memory = await redis_memory(http)
        await empty_redis.config_set("maxmemory", 1)
        failed = [checks(await http.get(f"/readyz{query}")) for query in ("", "?only=redis")]
    finally:
        await empty_redis.config_set("maxmemory", 0)
    assert is_ready.status_code == 200
    assert 0 < memory["used"] < memory["limit"] == 2**40
    assert failed == [["redis"], ["redis"]]
    assert (await http.get("/readyz?only=redis")).status_code == 200


async def redis_memory(http: httpx.AsyncClient) -> dict[str, float]:
    """Bytes by kind, as the metrics page has them."""
    page = (await http.get("/metrics")).text
    families = text_string_to_metric_families(page)
    return {
        sample.labels["kind"]: sample.value
        for family in families
        if family.name == "atelier_redis_memory_bytes"
        for sample in family.samples
    }


async def test_a_request_that_no_replica_confirms_is_refused_and_found_by_its_key(
    settings: Settings, redis_url: str, empty_redis: Redis, store: Store
) -> None:
    waits = QueueSettings(wait_replicas=1, wait_replicas_s=0.05)
    queue = await Queue.connect(redis_url, waits)
    await queue.register("pool", SPEC, ready=True)
    app = create_app(settings.model_copy(update={"queue": waits}), queue, store)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for headers, left in (({}, 0), ({"Idempotency-Key": "key"}, 1)):
            refused = await http.post("/v1/generate", json=CAT, headers=headers)
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            assert refused.json()["error"]["code"] == "unconfirmed"
            assert len(await queue.list(limit=10)) == left
    await queue.close()


async def test_not_ready_without_a_store_to_write(
    settings: Settings, queue: Queue, pool: StandIn, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    store = Store(str(folder))
    folder.rmdir()
    folder.write_text("no folder any more")
    app = create_app(settings, queue, store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        answer = await http.get("/readyz")
        assert checks(answer) == ["store"]
        refused = await http.post("/v1/generate", json=CAT | {"image": PNG})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "store_unreachable"


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A PNG of one pixel."""


WAIT_S = 60
"""Time in which a worker claims the client's job and the test kills Redis, on a busy machine
too."""

Send = Callable[[signal.Signals], None]
Mortal = tuple[httpx.AsyncClient, Queue, Send, asyncio.Event]


@pytest.fixture
async def mortal(settings: Settings, tmp_path: Path) -> AsyncIterator[Mortal]:
    """Client of a front end, its queue, a function that signals its Redis, and the event that ends
    waits."""
    patient = settings.limits.model_copy(update={"max_wait_s": WAIT_S})
    settings = settings.model_copy(update={"limits": patient})
    with embedded(tmp_path / "own") as url:
        queue = await Queue.connect(url, QueueSettings())
        await queue.register("pool", SPEC, ready=True)
        async with Redis.from_url(url) as redis:
            server = int((await redis.info("server"))["process_id"])
        app = create_app(settings, queue, Store(settings.store_url))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        ):
            yield http, queue, partial(os.kill, server), app.state.front.stopping
        await queue.close()


async def test_lost_redis_during_submission_names_the_job(
    mortal: Mortal,
) -> None:
    http, queue, send, stopping = mortal
    wait = {"Prefer": f"wait={WAIT_S}"}
    waiting = asyncio.create_task(http.post("/v1/generate", json=CAT, headers=wait))
    (claim,) = await queue.claim("pool", MODEL, 1, wait_s=WAIT_S)

    async def is_counted() -> bool:
        """Return whether the front end has counted the acceptance, which Redis precedes."""
        return (
            f'accepted_total{{model="{MODEL}",tenant_class="default"}} 1.0'
            in (await http.get("/metrics")).text
        )

    await eventually(is_counted)
    send(signal.SIGKILL)
    stopping.set()
    answer = await waiting
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    assert answer.headers["x-job-id"] == answer.json()["job_id"] == claim.job.id


async def test_all_endpoints_report_a_lost_redis(mortal: Mortal) -> None:
    lonely, _, send, _ = mortal
    send(signal.SIGKILL)

    async def request(method: str, path: str) -> httpx.Response:
        return await lonely.request(method, path, json=CAT if method == "POST" else None)

    calls = (
        ("POST", "/v1/generate"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/job_1"),
        ("GET", "/v1/jobs/job_1/events"),
        ("GET", "/v1/jobs/job_1/outputs/0"),
        ("POST", "/v1/jobs/job_1/cancel"),
        ("DELETE", "/v1/jobs/job_1"),
        ("GET", "/v1/models"),
    )
    for answer in await asyncio.gather(*(request(*call) for call in calls)):
        assert answer.status_code == 503, answer.request.url
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["code"] == "queue_unreachable"
    assert checks(await lonely.get("/readyz")) == ["redis"]
    assert checks(await lonely.get("/readyz?only=redis")) == ["redis"]
    assert (await lonely.get("/healthz")).status_code == 200
    page = (await lonely.get("/metrics")).text
    assert "atelier_queue_up 0.0" in page and "atelier_queue_jobs{" not in page


async def test_hanging_redis_is_reported_soon(mortal: Mortal) -> None:
    """The server accepts connections and does not respond: a single attempt decides."""
    http, _, send, _ = mortal
    send(signal.SIGSTOP)
    try:
        async with asyncio.timeout(4 * COMMAND_TIMEOUT_S):  # all attempts would take six times that
            answer = await http.post("/v1/generate", json=CAT)
    finally:
        send(signal.SIGCONT)
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "queue_unreachable"
    assert (await http.post("/v1/generate", json=CAT)).status_code == 202


async def test_metrics_by_route_model_and_reason(http: httpx.AsyncClient, pool: StandIn) -> None:
    await http.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})
    await http.post("/v1/generate", json=CAT | {"wdth": 1})
    await http.post("/v1/generate", json={"prompt": "a cat", "model": "x" * 99})
    await http.get("/v1/jobs/job_1")
    await http.get("/nowhere/at/all")
    page = await http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }

    def requests(route: str, method: str, status: str) -> float:
        labels = {"route": route, "method": method, "status": status}
        return samples["atelier_http_requests_total", *sorted(labels.items())]

    default_class = ("tenant_class", "default")

    def refused(model: str, reason: str) -> float:
        return samples[
            "atelier_jobs_refused_total", ("model", model), ("reason", reason), default_class
        ]

    assert requests("/v1/generate", "POST", "200") == 1
    assert requests("/v1/generate", "POST", "422") == 1
    assert requests("/v1/jobs/{job_id}", "GET", "404") == 1
    assert requests("none", "GET", "404") == 1
    assert samples["atelier_jobs_accepted_total", ("model", MODEL), default_class] == 1
    assert refused(MODEL, "invalid_request") == 1, "the only model"
    assert refused("", "invalid_request") == 0
    assert refused("", "model_not_found") == 1
    assert samples["atelier_queue_jobs", ("model", MODEL), ("state", "queued")] == 0
    assert samples["atelier_model_ready", ("model", MODEL)] == 1
    assert samples[("atelier_queue_up",)] == 1


async def test_playground_and_pages_are_served(http: httpx.AsyncClient) -> None:
    page = await http.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert (await http.get("/docs")).status_code == 200
    assert (await http.get("/openapi.json")).json()["info"]["title"] == "Atelier"
