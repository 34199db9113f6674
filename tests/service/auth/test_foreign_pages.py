"""Cross-site requests from foreign pages to a server without keys."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.redis import RedisSettings
from service.settings.server import ServerSettings
from service.settings.settings import Settings

HOST = "localhost:8000"
EVIL = "https://evil.example"
FOREIGN = [
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": "http://[::"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://localhost:80000"},
    {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
]
OWN = [
    {},
    {"Origin": f"http://{HOST}"},
    {"Origin": f"https://{HOST}"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://localhost:5173", "Sec-Fetch-Site": "same-origin"},
]
"""Headers of permitted requests. The last came through the proxy of a developer's page."""
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{HOST}")


def changing(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Yield method and path of every route that changes something."""
    for path, methods in app.openapi()["paths"].items():
        yield from ((method.upper(), path) for method in methods if method != "get")


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_no_route_accepts_requests_of_foreign_pages(
    app: FastAPI, queue: Queue, headers: dict[str, str]
) -> None:
    routes = list(changing(app))
    assert len(routes) > 30 and ("POST", "/v1/generate") in routes and ("POST", "/mcp") in routes
    async with client(app) as http:
        for method, path in (*routes, ("POST", "/nowhere")):
            answer = await http.request(method, path, content=b"a=b", headers=FORM | headers)
            assert answer.status_code == 403, (method, path, answer.text)
            assert "server.cors_origins" in answer.text
    assert await queue.list(limit=1) == []


@pytest.mark.parametrize("headers", OWN, ids=str)
async def test_own_pages_and_programs_are_served(app: FastAPI, headers: dict[str, str]) -> None:
    async with client(app) as http:
        for method, path in changing(app):
            answer = await http.request(method, path, content=b"a=b", headers=FORM | headers)
            assert answer.status_code not in (403, 500), (method, path, answer.text)


async def test_foreign_pages_may_send_safe_requests(app: FastAPI) -> None:
    async with client(app) as http:
        for method in ("GET", "HEAD"):
            for headers in FOREIGN:
                answer = await http.request(method, "/v1/models", headers=headers)
                assert answer.status_code == 200, headers


async def test_listed_origins_and_servers_with_keys(
    settings: Settings, queue: Queue, store: Store, redis_url: str
) -> None:
    common = {"redis": RedisSettings(url=redis_url)}
    listed = ServerSettings(cors_origins=(EVIL,), public_url="https://atelier.example/images")
    for server, headers, status in (
        (listed, {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}, 422),
        (listed, {"Origin": "https://atelier.example"}, 422),
        (listed, {"Origin": "https://other.example"}, 403),
        (ServerSettings(keys=True), {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}, 401),
    ):
        app = create_app(settings.model_copy(update=common | {"server": server}), queue, store)
        async with client(app) as http:
            answer = await http.post("/v1/generate", json={}, headers=headers)
            assert answer.status_code == status, (server, headers, answer.text)
