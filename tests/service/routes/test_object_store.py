"""Front end with files in S3: redirects to signed URLs, and none to changed or missing files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.conftest import served
from tests.service.jobs import object_stores
from tests.service.jobs.object_stores import BUCKET, Server
from tests.service.standin import MODEL, StandIn, picture


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with object_stores.serving() as server:
        httpx.put(f"{server.url}/{BUCKET}").raise_for_status()
        yield server


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    object_stores.use_s3(monkeypatch, server)
    return Store(f"s3://{BUCKET}/atelier")


@pytest.fixture
async def http(settings: Settings, queue: Queue, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        served(create_app(settings, queue, store), settings) as address,
        httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as http,
    ):
        yield http


async def test_output_lifecycle(
    http: httpx.AsyncClient, queue: Queue, store: Store, server: Server
) -> None:
    async with StandIn(queue, store):
        body = {"prompt": "a cat", "model": MODEL}
        job = (await http.post("/v1/generate", json=body, headers={"Prefer": "wait"})).json()
    url = job["outputs"][0]["url"]
    stored = await queue.get(job["id"])
    assert stored is not None
    key = stored.outputs[0].key

    answer = await http.get(url)
    assert answer.status_code == 307 and answer.headers["cache-control"] == "no-store"
    assert (await http.get(answer.headers["location"])).content == picture()
    head = await http.head(url)
    assert head.status_code == 307
    redirected = await http.head(head.headers["location"])
    assert (redirected.status_code, redirected.headers["content-length"]) == (
        200,
        str(len(picture())),
    )

    await store.put(key, picture()[:-1], "image/png")
    answer = await http.get(url)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "output_damaged")

    server.stop()
    assert (await http.get(url)).status_code == 503
    assert "store" in (await http.get("/readyz")).json()["detail"]
    server.start()

    await store.delete([key])
    answer = await http.get(url)
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "output_gone")

    await store.put(key, picture(), "image/png")
    assert (await http.delete(f"/v1/jobs/{job['id']}")).status_code == 204
    assert not await store.exists(key)
