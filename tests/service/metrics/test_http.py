"""The front end's metrics: few series whatever clients send, told from the start, and in time."""

from __future__ import annotations

import asyncio
import subprocess
from shutil import which

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SPEC, StandIn
from tests.service.test_keys import bearer, keys, with_keys  # noqa: F401 - fixtures

CAT = {"prompt": "a cat", "model": MODEL}
NAMES = [f"tenant-{number}" for number in range(12)]


async def samples(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """By name and label values, these by the names of their labels."""
    page = (await http.get("/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_what_may_happen_is_told_before_it_does(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    """A registered model has its counts from the first scrape on, without pools and jobs, too."""
    await queue.register("pool", SPEC, ready=True)
    await queue.unregister("pool", MODEL)
    told = await samples(http)
    for sample in (
        ("atelier_jobs_accepted_total", MODEL, "default"),
        ("atelier_jobs_ended_total", MODEL, "expired", "default"),
        ("atelier_job_deadlines_total", MODEL, "missed", "default"),
        ("atelier_reclaimed_leases_total", MODEL),
        ("atelier_retries_total", MODEL, "lost"),
        ("atelier_queue_backlog_device_seconds", MODEL),
        ("atelier_queue_oldest_seconds", MODEL),
        ("atelier_queue_jobs", MODEL, "queued"),
        ("atelier_model_pools", MODEL),
    ):
        assert told[sample] == 0, sample


async def test_a_life_is_counted_by_its_end(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn
) -> None:
    pool.may_finish.clear()
    job = (await http.post("/v1/generate", json=CAT)).json()
    await pool.has_claimed.wait()
    waiting = (await http.post("/v1/generate", json=CAT | {"deadline_s": 900})).json()
    told = await samples(http)
    assert told["atelier_queue_jobs", MODEL, "queued"] == 1
    assert told["atelier_queue_jobs", MODEL, "running"] == 1
    assert told["atelier_queue_backlog_device_seconds", MODEL] == pytest.approx(1, abs=1)
    for _ in range(2):
        await http.post(f"/v1/jobs/{waiting['id']}/cancel")
    await http.delete(f"/v1/jobs/{waiting['id']}")
    await http.delete(f"/v1/jobs/{job['id']}")
    pool.may_finish.set()
    told = await samples(http)
    assert told["atelier_jobs_ended_total", MODEL, "canceled", "default"] == 2
    assert told["atelier_job_duration_seconds_count", MODEL, "canceled"] == 2
    assert told["atelier_job_deadlines_total", MODEL, "missed", "default"] == 0


async def hostile(http: httpx.AsyncClient, salt: str) -> None:
    """Everything that a client may choose, chosen anew."""
    calls = [
        ("GET", f"/{salt}/nowhere", {}),
        (f"X{salt.upper()}", "/v1/jobs", {}),
        ("GET", f"/v1/jobs/{salt}", {}),
        ("GET", f"/v1/models/{salt}?{salt}={salt}", {}),
        ("POST", "/v1/generate", CAT | {"model": salt}),
        ("POST", "/v1/generate", CAT | {salt: salt}),
        ("POST", "/v1/generate", CAT | {"metadata": {salt: salt}, "prompt": salt}),
        ("POST", "/v1/generate", CAT | {"scheduler": {"name": salt}}),
        ("POST", "/v1/generate", CAT | {"width": 32 + 16 * len(salt), "prompt": salt}),
        ("POST", "/v1/generate", CAT | {"output": {"format": salt}}),
    ]
    headers = {"Idempotency-Key": salt, "User-Agent": salt, "Host": salt, "X-Request-Id": salt}
    await asyncio.gather(
        *(
            http.request(method, path, json=body or None, headers=headers)
            for method, path, body in calls
        )
    )


async def test_a_hostile_client_adds_no_series(http: httpx.AsyncClient, pool: StandIn) -> None:
    await hostile(http, "first")
    await samples(http)  # a scrape has series of its own
    before = await samples(http)
    for number in range(20):
        await hostile(http, "s" * number + f"alt{number}")
    after = await samples(http)
    assert after.keys() == before.keys()
    assert not [sample for sample in after if "alt" in "".join(sample)]


async def test_tenants_are_told_by_the_classes_of_the_settings(
    settings: Settings,
    queue: Queue,
    redis_url: str,
    pool: StandIn,
    keys: object,  # noqa: F811
) -> None:
    named = {
        "tenant-0": TenantSettings(metrics_class="gold"),
        "tenant-1": TenantSettings(metrics_class="gold", max_queued=1),
    }
    own = with_keys(settings, redis_url).model_copy(update={"tenants": named})
    app = create_app(own, queue, Store(own.store_url))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        for name in NAMES:
            _, key = await keys.create(name)  # type: ignore[attr-defined]
            answer = await http.post("/v1/generate", json=CAT, headers=bearer(key))
            assert answer.status_code == 202
            await http.post("/v1/generate", json=CAT | {"wdth": 1}, headers=bearer(key))

        async def all_ended() -> bool:
            return not (await queue.depths())[MODEL].queued

        await eventually(all_ended)
        told = await samples(http)
    classes = {key[2] for key in told if key[0] == "atelier_jobs_accepted_total"}
    assert classes == {"default", "gold"}
    assert told["atelier_jobs_accepted_total", MODEL, "gold"] == 2
    assert told["atelier_jobs_accepted_total", MODEL, "default"] == len(NAMES) - 2
    assert not [sample for sample in told if "tenant-" in "".join(sample)]
    assert {job.tenant_class for job in pool.seen if job.tenant in named} == {"gold"}


async def test_promtool_has_no_objection(http: httpx.AsyncClient, pool: StandIn) -> None:
    await http.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})
    check(which("promtool"), (await http.get("/metrics")).text)


def check(promtool: str | None, page: str) -> None:
    assert promtool, "promtool is missing: apt-get install prometheus"
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
