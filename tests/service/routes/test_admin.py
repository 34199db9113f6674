"""/v1/admin: authorization, operators' views and actions, and the audit log."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import PoolFacts
from service.jobs.storage.object_store import Store
from service.operators.audit import FOLDER
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.adapters import INK
from tests.service.jobs.examples import FAILURE, USAGE, a_job, an_output
from tests.service.standin import MODEL, SPEC
from tests.service.test_keys import OPERATORS, routes, with_keys
from tests.service.versions import ALIAS, R1, R2, generate, set_alias, version

ACTS = [
    ("DELETE", "/v1/admin/jobs/ID"),
    ("POST", "/v1/admin/jobs/ID/cancel"),
    ("POST", "/v1/admin/jobs/ID/requeue"),
    ("POST", f"/v1/admin/models/{MODEL}/pause"),
    ("POST", "/v1/admin/pools/pool/resume"),
    ("POST", "/v1/admin/pools/pool/sleep"),
    ("POST", "/v1/admin/pools/pool/wake"),
    ("DELETE", "/v1/admin/loras/acme/ink"),
]
READS = [("GET", f"/v1/admin/{name}") for name in ("overview", "jobs", "loras", "audit")]


@pytest.fixture
async def keys(empty_redis: Redis) -> ApiKeys:
    return ApiKeys(empty_redis)


@pytest.fixture
async def admin(
    settings: Settings, queue: Queue, store: Store, redis_url: str, keys: ApiKeys
) -> AsyncIterator[httpx.AsyncClient]:
    """Operator's client of a server that requires API keys."""
    _, key = await keys.create_operator("alice")
    app = create_app(with_keys(settings, redis_url), queue, store)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=transport,
            base_url="http://localhost",
            headers={"Authorization": f"Bearer {key}"},
        ) as http,
    ):
        yield http


async def acts(http: httpx.AsyncClient) -> list[tuple[str, str, str]]:
    """(act, target, outcome) of today's audit records; a test may run across midnight."""
    answer = await http.get("/v1/admin/audit")
    assert answer.status_code == 200, answer.text
    return [
        (record["act"], record["target"], record["outcome"]) for record in answer.json()["data"]
    ]


async def put(queue: Queue, **fields: Any) -> str:
    return (await queue.put(a_job(model=MODEL, **fields)))[0].id


@pytest.mark.parametrize(("method", "path"), [*ACTS, *READS])
async def test_endpoints_require_an_operator_key(
    admin: httpx.AsyncClient, keys: ApiKeys, store: Store, method: str, path: str
) -> None:
    _, tenants = await keys.create("acme")
    for headers, status, code in (
        ({"Authorization": ""}, 401, "unauthorized"),
        ({"Authorization": "Bearer atl_0_1"}, 401, "invalid_api_key"),
        ({"Authorization": f"Bearer {tenants}"}, 403, "wrong_role"),
    ):
        answer = await admin.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert not await store.below(f"{FOLDER}/")


def test_no_route_is_left_out(app: FastAPI) -> None:
    """Every operator-only route is in the tables of this test."""
    admin_routes = {route for route in routes(app) if route[1].startswith(OPERATORS)}
    patterns = [(method, re.sub(r"\{\w+\}", r"[^/]+", path)) for method, path in admin_routes]
    for method, path in ACTS + READS:
        assert any(
            method == allowed and re.fullmatch(pattern, path) for allowed, pattern in patterns
        )
    assert len(admin_routes) == len(ACTS + READS)


async def test_operator_key_has_no_tenant_access(admin: httpx.AsyncClient) -> None:
    for method, path in (("POST", "/v1/generate"), ("GET", "/v1/jobs"), ("GET", "/v1/loras")):
        answer = await admin.request(method, path, json={"prompt": "a cat"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_role")


async def test_loopback_clients_are_operators(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/admin/overview")).status_code == 200


@pytest.mark.parametrize(("host", "needs"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_public_address_without_keys_has_no_operators(
    settings: Settings, queue: Queue, store: Store, redis_url: str, host: str, needs: bool
) -> None:
    """A server with `--no-keys` at an address that others can reach has no operators."""
    app = create_app(with_keys(settings, redis_url, keys=False, host=host), queue, store)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/v1/admin/overview")).status_code == (401 if needs else 200)
        assert (await http.get("/v1/jobs")).status_code == 200
    await app.state.front.close()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
async def test_cross_site_forms_are_rejected(
    http: httpx.AsyncClient, queue: Queue, kind: str
) -> None:
    await queue.register("pool-1", SPEC, ready=True)
    answer = await http.post(
        f"/v1/admin/models/{MODEL}/pause", content="{}", headers={"Content-Type": kind}
    )
    assert answer.status_code == 415 and not await queue.pauses()


async def test_jobs_of_all_tenants_without_prompts(admin: httpx.AsyncClient, queue: Queue) -> None:
    secret = {"prompt": "a secret", "model": MODEL}
    ids = [await put(queue, tenant=name, request=secret) for name in ("a", "b", "a")]
    answer = await admin.get("/v1/admin/jobs", params={"limit": 2})
    assert [job["id"] for job in answer.json()["data"]] == [ids[2], ids[1]]
    rest = await admin.get("/v1/admin/jobs", params={"after": answer.json()["next"]})
    assert [job["id"] for job in rest.json()["data"]] == [ids[0]] and rest.json()["next"] is None
    of_b = (await admin.get("/v1/admin/jobs", params={"tenant": "b", "state": "queued"})).json()
    assert [(job["id"], job["tenant"]) for job in of_b["data"]] == [(ids[1], "b")]
    assert "secret" not in answer.text
    assert (await admin.get("/v1/admin/jobs", params={"after": "job_none"})).status_code == 404
    assert (await admin.get("/v1/admin/jobs", params={"state": "odd"})).status_code == 422


async def test_jobs_by_serving_version(http: httpx.AsyncClient, queue: Queue) -> None:
    """Jobs are listed by the version that serves them, also after another version has taken a job
    over."""

    async def listed(**query: str) -> list[tuple[str, str, str]]:
        answer = await http.get("/v1/admin/jobs", params=query)
        jobs = answer.json()["data"]
        return [(job["id"], job["model"], job["served_by"]) for job in jobs]

    for name in (R1, R2, MODEL):
        await queue.register(f"pool-{name}", version(name), ready=True)
    of_version = {}
    for name in (R1, R2):
        await set_alias(queue, {name: 1})
        of_version[name] = (await generate(http))["id"]
    plain = (await generate(http, MODEL))["id"]
    first, second = of_version[R1], of_version[R2]
    assert await listed(served_by=R2) == [(second, ALIAS, R2)]
    assert await listed(served_by=MODEL) == [(plain, MODEL, MODEL)]
    assert await listed(model=ALIAS) == [(second, ALIAS, R2), (first, ALIAS, R1)]
    assert await listed(model=ALIAS, served_by=R1) == [(first, ALIAS, R1)]
    job = await queue.get(first)
    assert job is not None and await queue.switch_model(job, version(R2))
    assert await listed(served_by=R1) == []
    assert [job for job, *_ in await listed(served_by=R2)] == [second, first]


async def test_a_job_is_canceled_and_requeued(
    admin: httpx.AsyncClient, queue: Queue, keys: ApiKeys
) -> None:
    first, second = [await put(queue, tenant="acme") for _ in range(2)]
    (claim,) = await queue.claim("pool-1", MODEL, 1)
    answer = await admin.post(f"/v1/admin/jobs/{first}/requeue", json={"reason": "a sick chip"})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["attempts"]) == ("queued", 0)
    assert not await queue.progress(claim, 1, 28)
    answer = await admin.post(f"/v1/admin/jobs/{second}/cancel", json={})
    assert answer.json()["state"] == "canceled"
    answer = await admin.post(f"/v1/admin/jobs/{second}/requeue", json={})
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "job_ended"
    assert (await admin.post("/v1/admin/jobs/job_none/cancel", json={})).status_code == 404
    assert await acts(admin) == [
        ("requeue job", first, "done"),
        ("cancel job", second, "done"),
        ("requeue job", second, "failed"),
        ("cancel job", "job_none", "failed"),
    ]
    record = (await admin.get("/v1/admin/audit")).json()["data"][0]
    (key,) = await keys.all()
    assert (record["name"], record["key_id"], record["reason"]) == ("alice", key.id, "a sick chip")
    assert record["address"] and record["at"].startswith(f"{datetime.now(UTC):%Y-}")


async def test_a_job_is_deleted_with_its_outputs(
    admin: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    job_id, waiting, other = [await put(queue, tenant=name) for name in ("acme", "acme", "zoo")]
    (claim,) = await queue.claim("pool-1", MODEL, 1)
    output = an_output(claim.job)
    await store.put(output.key, b"pixels", "image/png")
    assert await queue.finish(claim, [output], USAGE)
    path = f"/v1/admin/jobs/{job_id}"
    answer = await admin.delete(path, params={"reason": "a complaint"})
    assert answer.status_code == 204, answer.text
    assert await queue.get(job_id) is None and not await store.below(f"outputs/{job_id}/")
    assert (await admin.delete(f"/v1/admin/jobs/{waiting}")).status_code == 204
    assert (await admin.delete(path)).json()["error"]["code"] == "job_not_found"
    assert [job.id for job in await queue.list(tenant="acme", limit=9)] == []
    assert await queue.get(other) is not None
    assert await acts(admin) == [
        ("delete job", job_id, "done"),
        ("delete job", waiting, "done"),
        ("delete job", job_id, "failed"),
    ]
    record = (await admin.get("/v1/admin/audit")).json()["data"][0]
    assert (record["name"], record["reason"]) == ("alice", "a complaint")


@pytest.mark.parametrize(("things", "name"), [("models", MODEL), ("pools", "pool")])
async def test_pause_and_resume(
    admin: httpx.AsyncClient, queue: Queue, things: str, name: str
) -> None:
    await queue.register("pool-1", SPEC, ready=True)
    job = await put(queue)
    path = f"/v1/admin/{things}/{name}"
    answer = await admin.post(f"{path}/pause", json={"reason": "a driver", "drain": True})
    (pause,) = answer.json()["data"]
    assert answer.json()["warning"] is None
    assert (pause["kind"], pause["name"], pause["by"]) == (things[:-1], name, "alice")
    assert (pause["reason"], pause["drains"]) == ("a driver", True)
    assert not await queue.claim("pool-1", MODEL, 1)
    assert (await admin.get("/v1/admin/overview")).json()["paused"] == [pause]
    sample = f'atelier_paused{{kind="{things[:-1]}",name="{name}"}} 1.0'
    assert sample in (await admin.get("/metrics")).text
    assert (await admin.post(f"{path}/resume", json={})).json()["data"] == []
    assert sample not in (await admin.get("/metrics")).text
    assert (await admin.post(f"{path}/resume", json={})).status_code == 404
    assert [claim.job.id for claim in await queue.claim("pool-1", MODEL, 1)] == [job]


@pytest.mark.parametrize(("things", "name"), [("models", MODEL), ("pools", "pool")])
async def test_absent_pool_or_model_can_be_paused(
    admin: httpx.AsyncClient, queue: Queue, things: str, name: str
) -> None:
    """A pool that is restarting, or a model scaled to zero, can be paused."""
    answer = await admin.post(f"/v1/admin/{things}/{name}/pause", json={})
    kind = things.removesuffix("s")
    assert answer.status_code == 200 and [item["name"] for item in answer.json()["data"]] == [name]
    assert f"there is no {kind} '{name}' now; available: none" in answer.json()["warning"]
    await queue.register("pool-1", SPEC, ready=True)
    await put(queue)
    assert not await queue.claim("pool-1", MODEL, 1)
    answer = await admin.post(f"/v1/admin/{things}/other/pause", json={})
    assert answer.status_code == 200 and name in answer.json()["warning"]


@pytest.mark.parametrize("name", ["a/b", "a/pause", "a/b/wake"])
async def test_names_have_slashes(admin: httpx.AsyncClient, queue: Queue, name: str) -> None:
    await queue.register(f"{name}-1", SPEC.model_copy(update={"name": name}), ready=True)
    for act in ("pause", "resume"):
        for things in ("models", "pools"):
            path = f"/v1/admin/{things}/{quote(name, safe='')}/{act}"
            answer = await admin.post(path, json={})
            assert (answer.status_code, answer.json()["warning"]) == (200, None)
            names = [item["name"] for item in answer.json()["data"]]
            assert act == "resume" or set(names) == {name}
    path = f"/v1/admin/pools/{name}"
    (sleep,) = (await admin.post(f"{path}/sleep", json={})).json()["data"]
    assert sleep["name"] == name
    assert (await admin.post(f"{path}/wake", json={})).json() == {"data": []}
    page = (await admin.get("/metrics")).text
    assert 'route="/v1/admin/{things}/{name}/pause"' in page and ":path" not in page


@pytest.mark.parametrize("name", ["", "%09", "x" * 201])
async def test_invalid_name_is_not_paused(
    admin: httpx.AsyncClient, queue: Queue, name: str
) -> None:
    answer = await admin.post(f"/v1/admin/pools/{name}/pause", json={})
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == "name"
    assert not await queue.pauses()


async def test_sleep_and_wake(admin: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("pool-1", SPEC, ready=True, facts=PoolFacts("x", 4, asleep=True))
    path = "/v1/admin/pools/pool"
    (sleep,) = (await admin.post(f"{path}/sleep", json={"reason": "training"})).json()["data"]
    assert (sleep["name"], sleep["by"], sleep["reason"]) == ("pool", "alice", "training")
    asleep = await queue.sleep_of("pool-1")
    assert asleep is not None and asleep.by == "alice" and await queue.sleep_of("others-1") is None
    assert [
        worker["asleep"] for worker in (await admin.get("/v1/admin/overview")).json()["workers"]
    ] == [True]
    assert (await admin.post(f"{path}/wake", json={})).json() == {"data": []}
    assert await queue.sleep_of("pool-1") is None
    assert (await admin.post(f"{path}/wake", json={})).status_code == 404
    assert (await admin.post("/v1/admin/pools/other/sleep", json={})).status_code == 404


async def test_the_overview(admin: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("pool-1", SPEC, ready=True)
    await queue.register("pool-2", SPEC, ready=False)
    failed, running, waiting = [await put(queue, tenant="acme", cost=2.0) for _ in range(3)]
    (claim,) = await queue.claim("pool-1", MODEL, 1)
    await queue.fail(claim, FAILURE, retry=False)
    await queue.claim("pool-1", MODEL, 1)
    overview = (await admin.get("/v1/admin/overview")).json()
    assert overview["waiting"] == [
        {"model": MODEL, "tenant": "acme", "jobs": 1, "device_seconds": 2.0}
    ]
    columns = ("name", "pool", "ready", "running")
    assert [[worker[name] for name in columns] for worker in overview["workers"]] == [
        ["pool-1", "pool", True, 1],
        ["pool-2", "pool", False, 0],
    ]
    assert [job["id"] for job in overview["running"]] == [running]
    (job,) = overview["failed"]
    assert (job["id"], job["error"]["code"]) == (failed, FAILURE.code)
    assert waiting not in str(overview)


@pytest.mark.changes_files
async def test_adapters_of_one_tenant(admin: httpx.AsyncClient, queue: Queue) -> None:
    for tenant, name in (("acme", "wash"), ("acme", "ink"), ("zoo", "zebra")):
        digest = INK.digest if name == "ink" else "0" * 64
        lora = INK.model_copy(update={"name": name, "digest": digest, "preview": "p"})
        await queue.record_lora(tenant, lora, TenantSettings())
    answer = await admin.get("/v1/admin/loras", params={"tenant": "acme"})
    rows = answer.json()["data"]
    assert [(row["name"], row["digest"]) for row in rows] == [
        ("ink", INK.digest),
        ("wash", "0" * 64),
    ]
    assert (rows[0]["preview"], rows[0]["trigger"]) == (None, "")
    none = await admin.get("/v1/admin/loras", params={"tenant": "empty"})
    assert none.json()["data"] == []
    assert (await admin.get("/v1/admin/loras")).status_code == 422


async def test_an_adapter_is_evicted(admin: httpx.AsyncClient, queue: Queue) -> None:
    await queue.record_lora("acme", INK, TenantSettings())
    answer = await admin.delete(f"/v1/admin/loras/acme/{INK.name}", params={"reason": "a claim"})
    assert answer.status_code == 204 and not await queue.loras("acme")
    assert (await admin.delete(f"/v1/admin/loras/acme/{INK.name}")).status_code == 404
    target = f"acme/{INK.name}"
    assert await acts(admin) == [
        ("evict adapter", target, "done"),
        ("evict adapter", target, "failed"),
    ]


@pytest.mark.changes_files
async def test_unaudited_change_does_not_happen(
    admin: httpx.AsyncClient, queue: Queue, tmp_path: Path
) -> None:
    job = await put(queue)
    outputs = tmp_path / "outputs"
    outputs.rename(tmp_path / "elsewhere")
    outputs.write_text("no folder")
    answer = await admin.post(f"/v1/admin/jobs/{job}/cancel", json={})
    assert answer.status_code == 503, answer.text
    current = await queue.get(job)
    assert current is not None and current.state == "queued"


@pytest.mark.parametrize(
    "body", [{"reson": "x"}, {"reason": "x" * 501}, {"drain": "perhaps"}, {"drain": 0}]
)
async def test_invalid_body_is_rejected(
    admin: httpx.AsyncClient, queue: Queue, body: dict[str, str]
) -> None:
    await queue.register("pool-1", SPEC, ready=True)
    answer = await admin.post(f"/v1/admin/models/{MODEL}/pause", json=body)
    assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == next(iter(body))
    assert not await queue.pauses() and not await acts(admin)
