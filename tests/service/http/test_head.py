"""HEAD of every resource, over real sockets: the headers of GET, without the body."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.routing import COMPATIBLE_ENDPOINTS
from tests.service.adapters import INK, TAKING
from tests.service.http.test_query_parameters import ROUTES
from tests.service.standin import StandIn, picture

PATHS = sorted({path for method, path in ROUTES if method == "GET"})
FOREIGN = {
    re.sub(r"\{[^}]*\}", "x", route.path)
    for door in COMPATIBLE_ENDPOINTS
    for route in door.router.routes
    if isinstance(route, APIRoute)
}
"""Paths of compatible endpoints, where the resource may not exist."""
SIGNED = "/links/"


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    """Stand-in worker of a model with an adapter that has a preview."""
    await store.put("loras/previews/ink", picture(), "image/png")
    ink = INK.model_copy(update={"preview": "loras/previews/ink"})
    spec = TAKING.model_copy(update={"loras": {"ink": ink}})
    async with StandIn(queue, store, spec) as pool:
        yield pool


@pytest.fixture
async def job(wire: httpx.AsyncClient, pool: StandIn) -> dict[str, Any]:
    body = {"prompt": "a cat", "model": pool.spec.name}
    answer = await wire.post("/v1/generate", json=body, headers={"Prefer": "wait"})
    created: dict[str, Any] = answer.json()
    return created


def existing_path(path: str, job: dict[str, Any]) -> str:
    """Replace placeholders in a path by the names of existing resources."""
    path = path.replace("jobs/x", f"jobs/{job['id']}").replace("loras/x", "loras/ink")
    path = path.replace("docs/x", "docs/swagger-ui.css").replace(
        "playground/x", "playground/app.js"
    )
    query = "?tenant=acme" if path == "/v1/admin/loras" else ""
    return path.replace("/x", f"/{job['model']}") + query


@pytest.mark.parametrize("path", PATHS)
async def test_the_headers_are_those_of_get(
    wire: httpx.AsyncClient, job: dict[str, Any], path: str
) -> None:
    is_ours, path = path not in FOREIGN and not path.startswith(SIGNED), existing_path(path, job)
    full, head = await wire.get(path), await wire.head(path)
    assert (head.status_code, head.content) == (full.status_code, b"")
    assert full.status_code == 200 or not is_ours
    changing = {"date", "transfer-encoding", "x-request-id"} | (
        {"content-length"} if path == "/metrics" else set()
    )
    assert lasting(head, changing) == lasting(full, changing)


def lasting(answer: httpx.Response, changing: set[str]) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in changing}


async def test_connection_is_reused_after_head(
    wire: httpx.AsyncClient, job: dict[str, Any]
) -> None:
    url = job["outputs"][0]["url"]
    for _ in range(3):
        assert (await wire.head(url)).headers["content-length"] == str(len(picture()))
        assert (await wire.get(url)).content == picture()


async def test_an_output_s_bytes_are_not_read(
    wire: httpx.AsyncClient, job: dict[str, Any], store: Store, queue: Queue
) -> None:
    (output,) = job["outputs"]
    stored = await queue.get(job["id"])
    assert stored is not None
    await store.put(stored.outputs[0].key, bytes(output["bytes"]), "image/png")
    assert (await wire.get(output["url"])).status_code == 500, "they differ from those recorded"
    head = await wire.head(output["url"])
    assert head.status_code == 200
    assert head.headers["etag"] == f'"{output["sha256"]}"'
    assert head.headers["content-type"] == "image/png"


async def test_head_of_a_link_reads_no_output(wire: httpx.AsyncClient, pool: StandIn) -> None:
    body = {"prompt": "a cat", "model": pool.spec.name, "response_format": "url"}
    made = (await wire.post("/v1/images/generations", json=body)).json()
    head = await wire.head(made["data"][0]["url"])
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(picture())))


async def test_deleted_output_returns_410_for_head(
    wire: httpx.AsyncClient, job: dict[str, Any], store: Store
) -> None:
    await store.delete([f"outputs/{job['id']}/"])
    assert (await wire.head(job["outputs"][0]["url"])).status_code == 410


async def test_a_client_s_copy_is_known_and_a_range_is_not(
    wire: httpx.AsyncClient, job: dict[str, Any]
) -> None:
    (output,) = job["outputs"]
    cached = await wire.head(output["url"], headers={"If-None-Match": f'"{output["sha256"]}"'})
    assert cached.status_code == 304
    part = await wire.head(output["url"], headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.headers["content-length"]) == (200, str(output["bytes"]))


async def test_head_of_events_does_not_wait(wire: httpx.AsyncClient, pool: StandIn) -> None:
    pool.may_finish.clear()
    body = {"prompt": "a cat", "model": pool.spec.name}
    job = (await wire.post("/v1/generate", json=body)).json()
    answer = await wire.head(f"/v1/jobs/{job['id']}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    pool.may_finish.set()


@pytest.mark.parametrize(
    ("path", "status"), [("/nowhere", 404), ("/v1/generate", 405), ("/v1/jobs?x=1", 422)]
)
async def test_errors_have_no_body_either(wire: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await wire.head(path)
    assert (answer.status_code, answer.content) == (status, b"")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_allow_names_head(wire: httpx.AsyncClient) -> None:
    answer = await wire.put("/v1/jobs/x")
    assert answer.headers["allow"] == "DELETE, GET, HEAD"


async def test_metrics_count_the_head_method(wire: httpx.AsyncClient) -> None:
    await wire.head("/v1/models")
    metrics = (await wire.get("/metrics")).text
    assert (
        'atelier_http_requests_total{method="HEAD",route="/v1/models",status="200"} 1.0' in metrics
    )
