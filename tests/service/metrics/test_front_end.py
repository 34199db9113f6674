"""Front-end metrics: series exist from the start, and clients' input adds none."""

from __future__ import annotations

import asyncio
import subprocess
from shutil import which

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from models.spec.model_spec import Aim
from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.routing import JOB_OPERATIONS
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SPEC, VIDEO, StandIn
from tests.service.test_keys import bearer, with_keys

CAT = {"prompt": "a cat", "model": MODEL}
REFUSALS = "atelier_jobs_refused_total"
NAMES = [f"tenant-{number}" for number in range(12)]


async def samples(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """Values by sample name and label values; labels are ordered by name."""
    page = (await http.get("/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_counters_exist_before_the_first_job(http: httpx.AsyncClient, queue: Queue) -> None:
    """A registered model's counters exist from the first scrape, even without workers and jobs."""
    await queue.register("pool", SPEC, ready=True)
    await queue.unregister("pool", MODEL)
    metrics = await samples(http)
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
        ("atelier_jobs_in_time_total", MODEL, "missed"),
        ("atelier_job_failures_total", MODEL, "store"),
        (REFUSALS, MODEL, "store_unreachable", "default"),
        (REFUSALS, "", "invalid_request", "default"),
    ):
        assert metrics[sample] == 0, sample


async def test_objectives_are_exported(http: httpx.AsyncClient, queue: Queue) -> None:
    """Objectives come from the workers' settings, or from defaults."""
    aim = Aim(objective_s=25, cold_start_s=2700)
    for spec in (SPEC.model_copy(update={"aim": aim}), VIDEO):
        await queue.register("pool", spec, ready=True)
    metrics = await samples(http)
    assert metrics["atelier_objective_seconds", MODEL] == 25
    assert metrics["atelier_cold_start_seconds", MODEL] == 2700
    assert metrics["atelier_objective_seconds", VIDEO.name] == 300
    assert metrics["atelier_cold_start_seconds", VIDEO.name] == 900


async def test_job_is_counted_by_its_end_state(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn
) -> None:
    pool.may_finish.clear()
    job = (await http.post("/v1/generate", json=CAT)).json()
    await pool.has_claimed.wait()
    waiting = (await http.post("/v1/generate", json=CAT | {"deadline_s": 900})).json()
    metrics = await samples(http)
    assert metrics["atelier_queue_jobs", MODEL, "queued"] == 1
    assert metrics["atelier_queue_jobs", MODEL, "running"] == 1
    assert metrics["atelier_queue_backlog_device_seconds", MODEL] == pytest.approx(1, abs=1)
    for _ in range(2):
        await http.post(f"/v1/jobs/{waiting['id']}/cancel")
    await http.delete(f"/v1/jobs/{waiting['id']}")
    await http.delete(f"/v1/jobs/{job['id']}")
    pool.may_finish.set()
    metrics = await samples(http)
    assert metrics["atelier_jobs_ended_total", MODEL, "canceled", "default"] == 2
    assert metrics["atelier_job_duration_seconds_count", MODEL, "canceled"] == 2
    assert metrics["atelier_job_deadlines_total", MODEL, "missed", "default"] == 0


async def test_each_class_of_requests_has_its_errors_from_the_start(
    app: FastAPI, http: httpx.AsyncClient, pool: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls do not dilute the error rate of generation; probes and pages are in neither class."""
    metrics = await samples(http)
    for name in ("generate", "read"):
        for outcome in ("answered", "failed"):
            assert metrics["atelier_api_requests_total", name, outcome] == 0
    job = (await http.post("/v1/generate", json=CAT)).json()["id"]
    for path in (f"/v1/jobs/{job}", "/v1/jobs", "/v1/jobs/nobodys", "/readyz", "/", "/nowhere"):
        await http.get(path)
    monkeypatch.setattr(app.state.front.costs, "add_accepted", None)
    assert (await http.post("/v1/generate", json=CAT)).status_code == 500
    assert (await http.post("/sdapi/v1/txt2img", json={"prompt": "a cat"})).status_code == 500
    metrics = await samples(http)
    assert metrics["atelier_api_requests_total", "generate", "answered"] == 1
    assert metrics["atelier_api_requests_total", "generate", "failed"] == 2
    assert metrics["atelier_api_requests_total", "read", "answered"] == 3
    assert metrics["atelier_api_requests_total", "read", "failed"] == 0


ASK_FOR_NOTHING = {
    *("put_pool_to_sleep", "wake_pool"),
    *("cancel_job", "cancel_batch", "cancel_prediction", "sdapi_interrupt", "sdapi_skip"),
    *("create_file", "upload_lora", "sdapi_set_options", "sdapi_png_info"),
    *("sdapi_refresh_models", "sdapi_refresh_loras"),
    *("cancel_any_job", "requeue_job", "pause_things", "resume_things"),
}
"""POST operations that create no job."""


def test_every_post_is_in_one_class(app: FastAPI) -> None:
    posts = {
        operation["operationId"]
        for path in app.openapi()["paths"].values()
        for method, operation in path.items()
        if method == "post"
    }
    assert posts == JOB_OPERATIONS | ASK_FOR_NOTHING
    assert not JOB_OPERATIONS & ASK_FOR_NOTHING


WRONG = {"prompt": "a cat", "width": "wide"}
REFUSED: dict[str, tuple[str, dict[str, object]]] = {
    "ours": ("/v1/generate", WRONG | {"model": MODEL}),
    "OpenAI's images": ("/v1/images/generations", WRONG | {"model": MODEL, "n": "two"}),
    "OpenAI's videos": ("/v1/videos", WRONG | {"model": MODEL, "seconds": []}),
    "Hugging Face's": (f"/hf/{MODEL}", {"inputs": 7}),
    "fal's": (f"/fal/queue/atelier/{MODEL}", {"prompt": 7}),
    "Replicate's": ("/v1/predictions", {"version": f"us/{MODEL}", "input": "a cat"}),
    "Replicate's, by address": (f"/v1/models/us/{MODEL}/predictions", {"input": "a cat"}),
    "AUTOMATIC1111's": (
        "/sdapi/v1/txt2img",
        {"prompt": 7, "override_settings": {"sd_model_checkpoint": MODEL}},
    ),
    "chat completions": ("/v1/chat/completions", {"model": MODEL, "messages": 7}),
    "responses": ("/v1/responses", {"model": MODEL, "input": "a cat", "tools": 7}),
    "responses, by the tool": (
        "/v1/responses",
        {"input": 7, "tools": [{"type": "image_generation", "model": MODEL}]},
    ),
    "MLPerf's": ("/v1/videos/generations", WRONG | {"model": MODEL}),
}
"""Invalid bodies that name a model."""


@pytest.mark.parametrize("door", REFUSED)
async def test_refused_bodies_count_for_the_model_they_name(
    door: str, http: httpx.AsyncClient, queue: Queue
) -> None:
    for spec in (SPEC, VIDEO):
        await queue.register("pool", spec, ready=True)
    path, body = REFUSED[door]
    assert (await http.post(path, json=body)).is_client_error
    metrics = await samples(http)
    counts = {key[1]: value for key, value in metrics.items() if key[0] == REFUSALS and value}
    assert counts == {MODEL: 1}


async def test_refused_arguments_of_a_tool_count_for_the_model_they_name(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    for spec in (SPEC, VIDEO):
        await queue.register("pool", spec, ready=True)
    call = {"name": "generate_image", "arguments": {"prompt": 7, "model": MODEL}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    accept = {"Accept": "application/json, text/event-stream"}
    answer = await http.post("/mcp", json=message, headers=accept)
    assert '"isError":true' in answer.text
    assert (await samples(http))[REFUSALS, MODEL, "invalid_request", "default"] == 1


async def test_refused_forms_and_continuations_count_for_their_model(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn
) -> None:
    await queue.register("pool", VIDEO, ready=True)
    parts = {"model": (None, MODEL), "nonsense": (None, "7")}
    assert (await http.post("/v1/images/edits", files=parts)).status_code == 400
    job = (await http.post("/v1/generate", json=CAT)).json()["id"]
    assert (await http.post(f"/v1/jobs/{job}/continue", json={})).status_code == 409
    metrics = await samples(http)
    counts = {key[1:]: value for key, value in metrics.items() if key[0] == REFUSALS and value}
    assert counts == {
        (MODEL, "invalid_request", "default"): 1,
        (MODEL, "job_not_paused", "default"): 1,
    }


async def test_refused_bodies_with_unknown_model_are_labeled_unknown(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    for spec in (SPEC, VIDEO):
        await queue.register("pool", spec, ready=True)
    for named in ({}, {"model": "nobody's"}, {"model": 7}):
        assert (await http.post("/v1/generate", json=WRONG | named)).status_code == 422
    assert (await http.post("/v1/generate", content=b"[")).status_code == 415
    metrics = await samples(http)
    counts = [(key[1], value) for key, value in metrics.items() if key[0] == REFUSALS and value]
    assert sorted(counts) == [("", 1), ("", 3)], "rejected for two reasons"


async def hostile(http: httpx.AsyncClient, salt: str) -> None:
    """Send requests with `salt` in every value that a client may choose."""
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
    await samples(http)  # a scrape adds series of its own
    before = await samples(http)
    for number in range(20):
        await hostile(http, "s" * number + f"alt{number}")
    after = await samples(http)
    assert after.keys() == before.keys()
    assert not [sample for sample in after if "alt" in "".join(sample)]


async def test_tenants_are_labelled_by_class(
    settings: Settings,
    queue: Queue,
    redis_url: str,
    pool: StandIn,
    keys: object,
) -> None:
    named = {
        "tenant-0": TenantSettings(metrics_class="gold"),
        "tenant-1": TenantSettings(metrics_class="gold", max_queued=1),
    }
    configured = with_keys(settings, redis_url).model_copy(update={"tenants": named})
    app = create_app(configured, queue, Store(configured.store_url))
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
        metrics = await samples(http)
    classes = {key[2] for key in metrics if key[0] == "atelier_jobs_accepted_total"}
    assert classes == {"default", "gold"}
    assert metrics["atelier_jobs_accepted_total", MODEL, "gold"] == 2
    assert metrics["atelier_jobs_accepted_total", MODEL, "default"] == len(NAMES) - 2
    assert not [sample for sample in metrics if "tenant-" in "".join(sample)]
    assert {job.tenant_class for job in pool.received if job.tenant in named} == {"gold"}


async def test_promtool_has_no_objection(http: httpx.AsyncClient, pool: StandIn) -> None:
    await http.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})
    check(which("promtool"), (await http.get("/metrics")).text)


def check(promtool: str | None, page: str) -> None:
    assert promtool, "promtool is missing: apt-get install prometheus"
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
