"""A server that requires API keys: authentication, and isolation between tenants."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.errors.forms import ErrorForms
from service.errors.problems import Unauthorized
from service.jobs.queue import Queue
from service.jobs.redis.keys import LEDGER
from service.jobs.storage.object_store import Store
from service.routing import COMPATIBLE_ENDPOINTS
from service.settings.redis import RedisSettings
from service.settings.settings import Settings
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SPEC, StandIn

Call = tuple[str, str]
"""HTTP method and path of an operation."""
CAT = {"prompt": "a cat", "model": MODEL}
OPEN_PATHS = ["/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/start.js"]
CLOSED = [
    ("POST", "/v1/generate"),
    ("POST", "/v1/verify"),
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{MODEL}"),
    ("GET", "/v1/loras"),
    ("POST", "/v1/loras"),
    ("GET", "/v1/loras/NAME"),
    ("DELETE", "/v1/loras/NAME"),
    ("GET", "/v1/loras/NAME/preview"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/ID"),
    ("DELETE", "/v1/jobs/ID"),
    ("POST", "/v1/jobs/ID/cancel"),
    ("POST", "/v1/jobs/ID/continue"),
    ("GET", "/v1/jobs/ID/events"),
    ("GET", "/v1/jobs/ID/outputs/0"),
    ("POST", f"/hf/{MODEL}"),
    ("POST", "/fal/run/APP"),
    ("POST", "/fal/queue/APP"),
    ("GET", "/fal/queue/APP/requests/REQUEST"),
    ("GET", "/fal/queue/APP/requests/REQUEST/status"),
    ("PUT", "/fal/queue/APP/requests/REQUEST/cancel"),
    ("POST", "/mcp"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/FILE"),
    ("GET", "/v1/files/FILE/content"),
    ("DELETE", "/v1/files/FILE"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/BATCH"),
    ("POST", "/v1/batches/BATCH/cancel"),
    ("POST", "/v1/predictions"),
    ("GET", "/v1/predictions"),
    ("GET", "/v1/predictions/PREDICTION"),
    ("POST", "/v1/predictions/PREDICTION/cancel"),
    ("POST", f"/v1/models/{MODEL}/predictions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    *(
        ("POST", f"/sdapi/v1/{name}")
        for name in (
            *("txt2img", "img2img", "options", "png-info", "interrupt", "skip"),
            *("refresh-checkpoints", "refresh-loras"),
        )
    ),
    *(
        ("GET", f"/sdapi/v1/{name}")
        for name in (
            *("options", "sd-models", "samplers", "schedulers", "loras", "upscalers", "sd-vae"),
            *("latent-upscale-modes", "hypernetworks", "face-restorers", "prompt-styles"),
            *("embeddings", "scripts", "cmd-flags", "progress", "realesrgan-models", "memory"),
        )
    ),
    *(
        ("GET", f"/controlnet/{name}")
        for name in ("version", "model_list", "module_list", "settings", "control_types")
    ),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/images/edits"),
    ("POST", "/v1/images/variations"),
    ("POST", "/v1/videos"),
    ("GET", "/v1/videos"),
    ("POST", "/v1/videos/generations"),
    ("GET", "/v1/videos/CLIP"),
    ("DELETE", "/v1/videos/CLIP"),
    ("POST", "/v1/videos/CLIP/remix"),
    ("GET", "/v1/videos/CLIP/content"),
]
OPERATORS = "/v1/admin/"
"""Paths that require an operator's key (`routes/test_admin.py`)."""
PASSWORDS = ("/sdapi/v1/", "/controlnet/")
"""Paths where the key may also be the password of `Basic` authentication."""
PARAMETERS = (
    ("CLIP", "{video_id}"),
    ("PREDICTION", "{prediction_id}"),
    ("REQUEST", "{request_id}"),
    ("FILE", "{file_id}"),
    ("BATCH", "{batch_id}"),
    ("APP", "{app}"),
    ("ID", "{job_id}"),
    (f"hf/{MODEL}", "hf/{model}"),
    (MODEL, "{name}"),
    ("NAME", "{name}"),
    ("/0", "/{index}"),
)
"""Placeholders of path parameters in the paths of `CLOSED`."""
OF_A_JOB = [call for call in CLOSED if "ID" in call[1]]
COMPATIBLE_WORDS = ("CLIP", "PREDICTION", "REQUEST")
"""Placeholders of a job's id in the paths of compatible endpoints."""
COMPATIBLE_JOB_CALLS = [
    (method, path, word) for method, path in CLOSED for word in COMPATIBLE_WORDS if word in path
]


def with_keys(settings: Settings, redis_url: str, **server: Any) -> Settings:
    fields: dict[str, Any] = {"keys": True, "keys_age_s": 0} | server
    return settings.model_copy(
        update={
            "redis": RedisSettings(url=redis_url),
            "server": settings.server.model_copy(update=fields),
        }
    )


@pytest.fixture
def settings(settings: Settings, redis_url: str) -> Settings:
    return with_keys(settings, redis_url)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def client(app: FastAPI, keys: ApiKeys, tenant: str) -> httpx.AsyncClient:
    _, key = await keys.create(tenant)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=bearer(key))


@pytest.fixture
async def acme(app: FastAPI, keys: ApiKeys) -> AsyncIterator[httpx.AsyncClient]:
    async with await client(app, keys, "acme") as http:
        yield http


@pytest.fixture
async def zoo(app: FastAPI, keys: ApiKeys) -> AsyncIterator[httpx.AsyncClient]:
    async with await client(app, keys, "zoo") as http:
        yield http


def routes(app: FastAPI) -> set[tuple[str, str]]:
    """Every method and path in the app's OpenAPI document."""
    paths = app.openapi()["paths"]
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


def test_no_route_is_left_out(app: FastAPI) -> None:
    named = {
        (method, functools.reduce(lambda text, entry: text.replace(*entry), PARAMETERS, path))
        for method, path in CLOSED
    }
    prefixes = tuple(prefix for door in COMPATIBLE_ENDPOINTS for prefix in door.error_forms)
    closed = ("/v1", *prefixes)
    of_tenants = {route for route in routes(app) if not route[1].startswith(OPERATORS)}
    assert named == {route for route in of_tenants if route[1].startswith(closed)}
    for path, methods in app.openapi()["paths"].items():
        for operation in methods.values():
            schemes = [name for entry in operation.get("security", []) for name in entry]
            assert bool(schemes) == path.startswith(closed), path


@pytest.mark.parametrize("call", CLOSED)
async def test_errors_without_a_valid_key_reveal_nothing(
    app: FastAPI, http: httpx.AsyncClient, pool: StandIn, acme: httpx.AsyncClient, call: Call
) -> None:
    method, path = call
    forms: ErrorForms = app.state.error_forms
    members = json.loads(bytes(forms.of(path)(Unauthorized("")).body)).keys()
    job = (await acme.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})).json()
    path = path.replace("ID", job["id"])
    key = acme.headers["Authorization"].partition(" ")[2]
    wrong = 'Bearer error="invalid_token"' if path.startswith(PASSWORDS) else "Bearer"
    for headers, challenge in [
        ({}, "Bearer"),
        ({"Authorization": "Basic YTpi"}, wrong),
        ({"Authorization": "Bearer"}, "Bearer"),
        ({"Authorization": key}, "Bearer"),
        (bearer("x"), 'Bearer error="invalid_token"'),
        (bearer(key + "x"), 'Bearer error="invalid_token"'),
        (bearer(key[:-1] + "g"), 'Bearer error="invalid_token"'),
    ]:
        answer = await http.request(method, path, headers=headers)
        assert (answer.status_code, answer.json().keys()) == (401, members), headers
        assert answer.headers["www-authenticate"] == challenge
        assert "atelier keys create" in answer.text
        assert key not in answer.text


@pytest.mark.parametrize("path", OPEN_PATHS)
async def test_tenant_independent_endpoints_are_public(
    http: httpx.AsyncClient, pool: StandIn, path: str
) -> None:
    assert (await http.get(path)).status_code == 200


async def test_the_scheme_is_read_as_http_has_it(
    http: httpx.AsyncClient, acme: httpx.AsyncClient
) -> None:
    key = acme.headers["Authorization"].partition(" ")[2]
    answer = await http.get("/v1/models", headers={"Authorization": f"bearer {key}"})
    assert answer.status_code == 200


async def test_a_job_is_its_keys_tenants(
    acme: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    job_id = (await acme.post("/v1/generate", json=CAT)).json()["id"]
    stored = await queue.get(job_id)
    assert stored is not None and stored.tenant == "acme"


async def test_only_a_tenant_verifies_its_jobs_outputs(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient, pool: StandIn
) -> None:
    job = (await acme.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})).json()
    request = {"job": job["id"]}
    answer = await zoo.post("/v1/verify", json=request)
    assert answer.status_code == 404 and "job_not_found" in answer.json()["type"]
    report = (await acme.post("/v1/verify", json=request)).json()
    assert report["verdict"] == "identical"


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/generate", CAT),
        ("/v1/images/generations", {"prompt": "a cat", "model": MODEL}),
        ("/v1/predictions", {"version": MODEL, "input": {"prompt": "a cat"}}),
        ("/sdapi/v1/txt2img", {"prompt": "a cat"}),
    ],
)
async def test_the_ledger_names_the_key_and_never_its_secret(
    acme: httpx.AsyncClient, pool: StandIn, keys: ApiKeys, queue: Queue, path: str, body: Any
) -> None:
    assert (await acme.post(path, json=body)).is_success

    async def is_recorded() -> bool:
        return bool(await queue.redis.xlen(LEDGER))

    await eventually(is_recorded)
    ((_, entry),) = await queue.redis.xrange(LEDGER)
    record = json.loads(entry["record"])
    (key,) = await keys.all()
    assert (record["tenant"], record["key"]) == ("acme", key.id)
    secret = acme.headers["Authorization"].rpartition("_")[2]
    assert secret not in entry["record"] and body.get("prompt", "a cat") not in entry["record"]


def lasting(answer: httpx.Response) -> dict[str, str]:
    """Headers of a response without its request id, for comparison with another response."""
    return {name: value for name, value in answer.headers.items() if name != "x-request-id"}


@pytest.mark.parametrize(("method", "path"), OF_A_JOB)
async def test_job_of_another_tenant_is_not_found(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient, pool: StandIn, method: str, path: str
) -> None:
    job = (await acme.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})).json()
    absent = "job_" + "0" * 24
    foreign = await zoo.request(method, path.replace("ID", job["id"]))
    never = await zoo.request(method, path.replace("ID", absent))
    assert foreign.status_code == 404
    assert foreign.text == never.text.replace(absent, job["id"])
    assert lasting(foreign) == lasting(never)
    assert (await acme.get(f"/v1/jobs/{job['id']}")).json() == job
    assert (await acme.get(job["outputs"][0]["url"])).status_code == 200


@pytest.mark.parametrize("call", COMPATIBLE_JOB_CALLS)
async def test_foreign_job_is_not_found_at_any_endpoint(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient, pool: StandIn, call: tuple[str, str, str]
) -> None:
    method, path, word = call
    job = (await acme.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})).json()
    absent, body = "job_" + "0" * 24, {"prompt": "a dog"} if path.endswith("remix") else None
    foreign = await zoo.request(method, path.replace(word, job["id"]), json=body)
    never = await zoo.request(method, path.replace(word, absent), json=body)
    assert (foreign.status_code, lasting(foreign)) == (404, lasting(never))
    assert foreign.text == never.text.replace(absent, job["id"])
    assert (await acme.get(f"/v1/jobs/{job['id']}")).json() == job
    for listed in ("/v1/predictions", "/v1/videos"):
        assert job["id"] not in (await zoo.get(listed)).text


async def test_cached_output_is_bound_to_its_key(acme: httpx.AsyncClient, pool: StandIn) -> None:
    job = (await acme.post("/v1/generate", json=CAT, headers={"Prefer": "wait"})).json()
    url = job["outputs"][0]["url"]
    full = await acme.get(url)
    part = await acme.get(url, headers={"Range": "bytes=0-3"})
    same = await acme.get(url, headers={"If-None-Match": full.headers["etag"]})
    assert [answer.status_code for answer in (full, part, same)] == [200, 206, 304]
    for answer in (full, part, same):
        assert answer.headers["cache-control"].startswith("private, ")
        assert answer.headers["vary"] == "Authorization"


async def test_a_running_job_cannot_be_stopped_by_others(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient, pool: StandIn
) -> None:
    pool.may_finish.clear()
    job_id = (await acme.post("/v1/generate", json=CAT)).json()["id"]
    await pool.has_claimed.wait()
    assert (await zoo.post(f"/v1/jobs/{job_id}/cancel")).status_code == 404
    assert (await zoo.delete(f"/v1/jobs/{job_id}")).status_code == 404
    assert (await zoo.post(f"/v1/jobs/{job_id}/continue", json={})).status_code == 404
    assert (await acme.post(f"/v1/jobs/{job_id}/continue", json={})).status_code == 409
    pool.may_finish.set()

    async def has_succeeded() -> bool:
        return (await acme.get(f"/v1/jobs/{job_id}")).json()["state"] == "succeeded"

    await eventually(has_succeeded)


async def test_tenants_list_only_their_own_jobs(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient, queue: Queue
) -> None:
    await queue.register("cold", SPEC, ready=False)
    made: dict[httpx.AsyncClient, list[str]] = {acme: [], zoo: []}
    for http in (acme, zoo, zoo, acme, zoo):
        made[http].insert(0, (await http.post("/v1/generate", json=CAT)).json()["id"])
    for http, ids in made.items():
        page = (await http.get("/v1/jobs", params={"limit": 1})).json()
        rest = (await http.get("/v1/jobs", params={"after": ids[0]})).json()
        assert [job["id"] for job in page["data"] + rest["data"]] == ids
        assert page["has_more"] and not rest["has_more"]
        queued = (await http.get("/v1/jobs", params={"state": "queued"})).json()["data"]
        assert [job["id"] for job in queued] == ids
    foreign = await acme.get("/v1/jobs", params={"after": made[zoo][0]})
    never = await acme.get("/v1/jobs", params={"after": "job_none"})
    assert foreign.status_code == never.status_code == 404
    assert foreign.text == never.text.replace("job_none", made[zoo][0])


async def test_idempotency_keys_are_a_tenants_own(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient, queue: Queue
) -> None:
    await queue.register("cold", SPEC, ready=False)
    same = {"Idempotency-Key": "k"}
    first = await acme.post("/v1/generate", json=CAT, headers=same)
    other = await zoo.post("/v1/generate", json=CAT | {"prompt": "a dog"}, headers=same)
    again = await acme.post("/v1/generate", json=CAT, headers=same)
    assert [a.status_code for a in (first, other, again)] == [202, 202, 202]
    assert first.json()["id"] == again.json()["id"] != other.json()["id"]


async def test_two_keys_of_one_tenant_share_its_jobs(
    app: FastAPI, keys: ApiKeys, acme: httpx.AsyncClient, pool: StandIn
) -> None:
    job_id = (await acme.post("/v1/generate", json=CAT)).json()["id"]
    async with await client(app, keys, "acme") as second:
        assert (await second.get(f"/v1/jobs/{job_id}")).status_code == 200


async def test_a_revoked_key_is_refused_within_its_age(
    settings: Settings, redis_url: str, queue: Queue, store: Store, keys: ApiKeys
) -> None:
    aged = create_app(with_keys(settings, redis_url, keys_age_s=0.5), queue, store)
    loop = asyncio.get_running_loop()
    async with aged.router.lifespan_context(aged), await client(aged, keys, "acme") as http:
        assert (await http.get("/v1/jobs")).status_code == 200
        (key,) = await keys.all()
        await keys.revoke(key.id)
        revoked_at = loop.time()

        async def is_refused() -> bool:
            return (await http.get("/v1/jobs")).status_code == 401

        await eventually(is_refused)
        # Half a second is the cache's age; the rest allows for a busy machine.
        assert loop.time() - revoked_at < 5
        _, new = await keys.create("acme")
        assert (await http.get("/v1/jobs", headers=bearer(new))).status_code == 200


async def test_valid_key_is_cached_for_max_age(
    settings: Settings, redis_url: str, queue: Queue, store: Store, keys: ApiKeys
) -> None:
    aged = create_app(with_keys(settings, redis_url, keys_age_s=3600), queue, store)
    async with aged.router.lifespan_context(aged), await client(aged, keys, "acme") as http:
        assert (await http.get("/v1/jobs")).status_code == 200
        (key,) = await keys.all()
        await keys.revoke(key.id)
        assert (await http.get("/v1/jobs")).status_code == 200


async def test_keys_are_ignored_where_none_is_required(
    settings: Settings, redis_url: str, queue: Queue, store: Store, pool: StandIn
) -> None:
    app = create_app(with_keys(settings, redis_url, keys="auto"), queue, store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        answer = await http.post("/v1/generate", json=CAT, headers=bearer("nonsense"))
        stored = await queue.get(answer.json()["id"])
        assert stored is not None and stored.tenant == "default"
        security = app.openapi()["paths"]["/v1/jobs"]["get"]["security"]
        assert security == [{"ApiKey": []}, {}]


async def test_keys_get_retryable_errors_without_redis(
    settings: Settings, queue: Queue, store: Store, tmp_path: Path
) -> None:
    away = create_app(with_keys(settings, f"unix://{tmp_path}/none.sock"), queue, store)
    transport = httpx.ASGITransport(away)
    headers = bearer("atl_0_0")
    async with (
        away.router.lifespan_context(away),
        httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as http,
    ):
        answer = await http.get("/v1/jobs")
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert answer.json()["error"]["code"] == "queue_unreachable"
