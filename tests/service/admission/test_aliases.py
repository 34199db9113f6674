"""Requests that name an alias: choice of a version, and the version's name in responses."""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import quote

import httpx

from models.spec.model_spec import ModelSpec
from service.jobs.model.ledger import Origin
from service.jobs.queue import Queue, WorkerState
from service.jobs.storage.object_store import Store
from tests.service.adapters import INK, TAKING, adapter
from tests.service.standin import POOL, SPEC, StandIn
from tests.service.versions import ALIAS, R1, R2, ended, generate, set_alias, version

KEYS = [f"key-{number}" for number in range(60)]


async def test_an_alias_is_served_by_its_versions(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    """The job shows the requested alias, the version that serves it, and its checkpoint."""
    await set_alias(queue, {R1: 1, R2: 1})
    async with (
        StandIn(queue, store, version(R1)) as first,
        StandIn(queue, store, version(R2)) as second,
    ):
        jobs = [await generate(http, headers={"Idempotency-Key": key}) for key in KEYS]
        counts = Counter(job["served_by"] for job in jobs)
        assert counts.keys() == {R1, R2} and min(counts.values()) > len(KEYS) / 5
        for job in jobs:
            assert job["model"] == ALIAS == job["request"]["model"]
            assert job["model_fingerprint"] == f"weights of {job['served_by']}"
        done = await asyncio.gather(*(ended(http, job["id"]) for job in jobs))
    by_pool = {job.id: R1 for job in first.received} | {job.id: R2 for job in second.received}
    assert {job["id"]: job["served_by"] for job in done} == by_pool
    listed = (await http.get("/v1/jobs", params={"model": ALIAS, "limit": 100})).json()["data"]
    assert {job["id"] for job in listed} == by_pool.keys()


async def test_a_repeated_request_finds_its_job(http: httpx.AsyncClient, queue: Queue) -> None:
    """Even if other versions serve the alias by then."""
    for name in (R1, R2):
        await queue.register(name, version(name), ready=True)
    await set_alias(queue, {R1: 1, R2: 1})
    first = [await generate(http, headers={"Idempotency-Key": key}) for key in KEYS[:8]]
    again = [await generate(http, headers={"Idempotency-Key": key}) for key in KEYS[:8]]
    await set_alias(queue, {R1: 0, R2: 1})
    later = [await generate(http, headers={"Idempotency-Key": key}) for key in KEYS[:8]]
    for jobs in (again, later):
        served = [(job["id"], job["served_by"]) for job in jobs]
        assert served == [(job["id"], job["served_by"]) for job in first]


async def test_repeated_request_keeps_its_version(http: httpx.AsyncClient, queue: Queue) -> None:
    """Otherwise the repeat would be validated against another version's limits."""
    small = SPEC.limits.model_copy(update={"max_side_px": 64})
    await queue.register(R1, version(R1), ready=True)
    await queue.register(R2, version(R2, limits=small), ready=True)
    await set_alias(queue, {R1: 1, R2: 1})
    body = {"prompt": "a cat", "model": ALIAS, "width": 96}

    async def status(key: str) -> int:
        headers = {"Idempotency-Key": key}
        return (await http.post("/v1/generate", json=body, headers=headers)).status_code

    first = [await status(key) for key in KEYS[:20]]
    assert {*first} == {202, 422}
    assert [await status(key) for key in KEYS[:20]] == first


async def test_a_version_without_pools_gets_nothing(http: httpx.AsyncClient, queue: Queue) -> None:
    """No jobs while another version is ready. Without any, requests are still accepted."""
    await set_alias(queue, {R1: 90, R2: 10})
    for name in (R1, R2):
        await queue.register(name, version(name), ready=True)
    await queue.unregister(R1, R1)
    assert {(await generate(http))["served_by"] for _ in range(20)} == {R2}
    await queue.register(R1, version(R1), ready=False)
    assert {(await generate(http))["served_by"] for _ in range(20)} == {R2}, "R1 is not ready"
    await queue.unregister(R2, R2)
    await queue.unregister(R1, R1)
    assert (await generate(http))["state"] == "queued"


async def test_versions_are_addressed_by_name(
    http: httpx.AsyncClient, queue: Queue, store: Store
) -> None:
    """`@` is accepted in bodies, paths, lists, compatible endpoints and metrics."""
    async with StandIn(queue, store, version(R2)):
        job = await generate(http, R2)
        assert (job["model"], job["served_by"]) == (R2, R2)
        await ended(http, job["id"])
        for name in (R2, quote(R2, safe="")):
            assert (await http.get(f"/v1/models/{name}")).json()["name"] == R2
        listed = (await http.get("/v1/jobs", params={"model": R2})).json()["data"]
        assert [view["id"] for view in listed] == [job["id"]]
        for path, body in (
            ("/v1/predictions", {"version": R2, "input": {"prompt": "a cat"}}),
            (f"/v1/models/atelier/{R2}/predictions", {"input": {"prompt": "a cat"}}),
            (f"/fal/queue/atelier/{R2}", {"prompt": "a cat"}),
            (f"/hf/{R2}", {"inputs": "a cat"}),
            ("/v1/images/generations", {"prompt": "a cat", "model": R2}),
        ):
            answer = await http.post(path, json=body)
            assert answer.is_success, (path, answer.text)
        page = (await http.get("/metrics")).text
        assert f'atelier_jobs_accepted_total{{model="{R2}"' in page
        assert f'atelier_model_info{{fingerprint="weights of {R2}",model="{R2}"}} 1.0' in page


async def test_models_list_aliases(http: httpx.AsyncClient, queue: Queue) -> None:
    for name in (R1, R2):
        await queue.register(f"pool of {name}", version(name), ready=name == R1)
    await set_alias(queue, {R1: 10, R2: 90})
    listed = {view["name"]: view for view in (await http.get("/v1/models")).json()["data"]}
    assert listed.keys() == {ALIAS, R1, R2}
    alias = (await http.get(f"/v1/models/{ALIAS}")).json()
    assert alias == listed[ALIAS]
    assert (alias["version"], alias["fingerprint"]) == (R1, f"weights of {R1}")
    assert (alias["base"], alias["ready"], alias["pools"]) == (None, True, [f"pool of {R1}"])
    assert listed[R2]["version"] is None
    await queue.register(f"pool of {R2}", version(R2), ready=True)
    alias = (await http.get(f"/v1/models/{ALIAS}")).json()
    assert (alias["version"], len(alias["pools"])) == (R2, 2)


async def test_a_lone_alias_need_not_be_named(http: httpx.AsyncClient, queue: Queue) -> None:
    for name in (R1, R2):
        await queue.register(name, version(name), ready=True)
    assert (await http.post("/v1/generate", json={"prompt": "a cat"})).status_code == 404
    await set_alias(queue, {R1: 1, R2: 1})
    answer = await http.post("/v1/generate", json={"prompt": "a cat"})
    assert answer.status_code == 202 and answer.json()["model"] == ALIAS


async def test_alias_precedes_a_model_of_the_same_name(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    """A model served under the plain name becomes a version of the alias."""
    for name in (ALIAS, R2):
        await queue.register(name, version(name), ready=True)
    assert (await generate(http))["served_by"] == ALIAS
    await set_alias(queue, {ALIAS: 1, R2: 0})
    assert (await generate(http))["served_by"] == ALIAS
    await set_alias(queue, {ALIAS: 0, R2: 1})
    assert (await generate(http))["served_by"] == R2


async def test_an_alias_of_nothing_is_unknown(http: httpx.AsyncClient, queue: Queue) -> None:
    await queue.register("other", version("other"), ready=True)
    await set_alias(queue, {R1: 1})
    answer = await http.post("/v1/generate", json={"prompt": "a cat", "model": ALIAS})
    assert answer.status_code == 404 and "available: other" in answer.json()["detail"]


async def test_claim_records_the_serving_checkpoint(http: httpx.AsyncClient, queue: Queue) -> None:
    """The model's weights change under its name while the job is queued."""
    await queue.register(POOL, version(R1), ready=True)
    job = await generate(http, R1)
    (claim,) = await queue.claim("new", R1, 1, WorkerState(origin=Origin(checkpoint="new weights")))
    assert claim.job.fingerprint == "new weights"
    view = (await http.get(f"/v1/jobs/{job['id']}")).json()
    assert view["model_fingerprint"] == "new weights"


def taking(name: str, **changed: object) -> ModelSpec:
    """A version with an adapter of the operator."""
    ink = INK.model_copy(update={"model": name})
    return version(name).model_copy(
        update={
            "fields": TAKING.fields,
            "lora_pages": TAKING.lora_pages,
            "lora_layers": TAKING.lora_layers,
            "loras": {"ink": ink},
            **changed,
        }
    )


async def upload(http: httpx.AsyncClient, name: str, model: str) -> httpx.Response:
    data = {"name": name, "model": model}
    return await http.post("/v1/loras", data=data, files={"file": ("a", adapter())})


async def test_alias_lists_adapters_of_all_versions(http: httpx.AsyncClient, queue: Queue) -> None:
    """Each version has the operator's adapters; uploads are for all versions or for one."""
    for name in (R1, R2):
        await queue.register(name, taking(name), ready=True)
    await set_alias(queue, {R1: 1, R2: 1})
    shared = await upload(http, "mine", ALIAS)
    assert (shared.status_code, shared.json()["model"]) == (201, ALIAS)
    only = await upload(http, "only-r2", R2)
    assert only.json()["model"] == R2
    for name in ("ink", "mine"):
        for model in (ALIAS, R1, R2):
            await generate(http, model, loras=[{"name": name}])
    await generate(http, R2, loras=[{"name": "only-r2"}])
    body = {"prompt": "a cat", "model": R1, "loras": [{"name": "only-r2"}]}
    refused = await http.post("/v1/generate", json=body)
    assert refused.status_code == 422 and R2 in refused.json()["errors"][0]["message"]


async def test_an_adapter_for_unlike_versions_is_refused(
    http: httpx.AsyncClient, queue: Queue
) -> None:
    await queue.register(R1, taking(R1), ready=True)
    await queue.register(R2, taking(R2, lora_layers="others"), ready=True)
    await set_alias(queue, {R1: 1, R2: 1})
    refused = await upload(http, "mine", ALIAS)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["field"] == "model" and R1 in error["message"] and R2 in error["message"]
    await queue.register(R2, taking(R2, lora_pages=0), ready=True)
    assert (await upload(http, "mine", ALIAS)).status_code == 422
