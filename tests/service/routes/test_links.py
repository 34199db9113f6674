"""Signed links: outputs without a key, for a limited time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from service.app import create_app
from service.auth.links import Links
from service.jobs.queue import Queue
from service.jobs.redis.keys import LINK_SECRET
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.standin import MODEL, StandIn, picture


@pytest.fixture
async def link(http: httpx.AsyncClient, pool: StandIn) -> str:
    body = {"prompt": "a cat", "response_format": "url"}
    answer = await http.post("/v1/images/generations", json=body)
    url: str = answer.json()["data"][0]["url"]
    return url


async def code_of(http: httpx.AsyncClient, link: str) -> tuple[int, str]:
    answer = await http.get(link)
    return answer.status_code, answer.json()["error"]["code"]


async def test_link_serves_the_output_ranges_and_headers(
    http: httpx.AsyncClient, link: str
) -> None:
    full = await http.get(link)
    assert full.status_code == 200 and full.content == picture()
    assert full.headers["content-type"] == "image/png"
    part = await http.get(link, headers={"Range": "bytes=1-3"})
    assert part.status_code == 206 and part.content == picture()[1:4]
    head = await http.head(link)
    assert head.status_code == 200 and not head.content
    assert head.headers["content-length"] == str(len(picture()))
    same = await http.get(link, headers={"If-None-Match": full.headers["etag"]})
    assert same.status_code == 304


async def test_a_changed_link_is_refused(http: httpx.AsyncClient, link: str) -> None:
    url = httpx.URL(link)
    signature, expires = url.params["signature"], int(url.params["expires"])
    other = "A" if signature[0] != "A" else "B"
    for changed in (
        url.copy_merge_params({"signature": other + signature[1:]}),
        url.copy_merge_params({"signature": "é"}),
        url.copy_merge_params({"expires": str(expires + 1)}),
        url.copy_with(path=url.path[:-1] + "1"),
    ):
        assert await code_of(http, str(changed)) == (403, "link_invalid")


async def test_expired_link_is_reported(
    http: httpx.AsyncClient, queue: Queue, pool: StandIn, link: str
) -> None:
    late = await Links(queue.redis, -10).path(pool.received[0].id, 0)
    assert await code_of(http, late) == (403, "link_expired")


async def test_link_expires_with_its_job(http: httpx.AsyncClient, pool: StandIn, link: str) -> None:
    await http.delete(f"/v1/jobs/{pool.received[0].id}")
    assert await code_of(http, link) == (404, "job_not_found")


async def test_link_is_valid_at_another_front_end(
    settings: Settings, queue: Queue, store: Store, link: str
) -> None:
    app = create_app(settings, queue, store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        assert (await http.get(link)).status_code == 200


async def test_all_links_end_with_the_secret(
    http: httpx.AsyncClient, empty_redis: Redis, link: str
) -> None:
    assert await empty_redis.delete(LINK_SECRET)
    assert await code_of(http, link) == (403, "link_invalid")


@pytest.mark.parametrize("query", ["", "?expires=1", "?signature=a", "?expires=-1&signature=a"])
async def test_a_link_needs_both_of_its_parameters(http: httpx.AsyncClient, query: str) -> None:
    assert (await http.get(f"/links/job_0/0{query}")).status_code == 422


@pytest.fixture
async def published(
    settings: Settings, queue: Queue, store: Store, pool: StandIn
) -> AsyncIterator[httpx.AsyncClient]:
    server = {"public_url": "https://atelier.example/up/", "link_s": 5}
    configured = settings.model_copy(update={"server": settings.server.model_copy(update=server)})
    app: FastAPI = create_app(configured, queue, store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        yield http


async def test_links_use_the_configured_public_url(published: httpx.AsyncClient) -> None:
    body = {"prompt": "a cat", "model": MODEL, "response_format": "url"}
    answer = await published.post("/v1/images/generations", json=body)
    url = httpx.URL(answer.json()["data"][0]["url"])
    assert str(url).startswith("https://atelier.example/up/links/job_")
    assert 0 < int(url.params["expires"]) - time.time() <= 5 + 1
