"""Check of the Host header: names for which a server responds."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from service.app import create_app
from service.auth.allowed_hosts import names_of
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.server import ServerSettings
from service.settings.settings import Settings

FOREIGN = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "frontend",
    "2130706433",
]
OWN = ["localhost", "LOCALHOST.", "app.localhost", "127.0.0.1", "[::1]", "10.1.2.3", "192.0.2.7"]


def client(app: FastAPI, host: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}:8000")


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_rebound_name_reads_and_makes_nothing(
    app: FastAPI, queue: Queue, host: str
) -> None:
    async with client(app, host) as http:
        answers = [
            await http.get("/v1/jobs"),
            await http.post("/v1/generate", json={"prompt": "a cat"}),
            await http.delete("/v1/jobs/job_x"),
            await http.get("/"),
        ]
    assert [answer.status_code for answer in answers] == [421] * 4
    assert "server.hosts" in answers[0].json()["detail"]
    assert await queue.list(limit=1) == []


@pytest.mark.parametrize("host", ["evil.example", "not a host", "[::"])
async def test_each_endpoint_has_its_own_error_format(app: FastAPI, host: str) -> None:
    paths = ("/v1/images/generations", "/sdapi/v1/txt2img", "/hf/x", "/mcp", "/fal/run/x")
    async with client(app, "localhost") as http:
        problems = [
            (await http.post(path, json={}, headers={"Host": host})).json() for path in paths
        ]
    openai, a1111, hugging_face, mcp, fal = problems
    assert set(openai) == {"error"} and openai["error"]["type"] == "invalid_request_error"
    assert set(a1111) == {"error", "detail", "body", "errors"}
    assert set(hugging_face) == {"error", "code"}
    assert mcp["jsonrpc"] == "2.0" and mcp["error"]["message"]
    assert set(fal) == {"detail", "error_type"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_probes_and_prometheus_come_by_any_name(app: FastAPI, path: str) -> None:
    async with client(app, "frontend.atelier.svc") as http:
        assert (await http.get(path)).status_code in (200, 503)


@pytest.mark.parametrize("host", OWN)
async def test_own_names_and_addresses(app: FastAPI, host: str) -> None:
    async with client(app, host) as http:
        assert (await http.get("/v1/jobs")).status_code == 200


async def test_listed_names(settings: Settings, queue: Queue, store: Store) -> None:
    server = settings.server.model_copy(update={"hosts": ("atelier.example", "*.lan")})
    app = create_app(settings.model_copy(update={"server": server}), queue, store)
    for host, status in (("Atelier.example", 200), ("box.lan", 200), ("lan", 421)):
        async with client(app, host) as http:
            assert (await http.get("/v1/jobs")).status_code == status, host


def test_host_check_is_off_with_keys() -> None:
    assert names_of(ServerSettings(keys=True)) is None
    assert names_of(ServerSettings(host="0.0.0.0")) is None
    assert names_of(ServerSettings(host="0.0.0.0", keys=False)) is not None
    assert names_of(ServerSettings(keys=True, hosts=("atelier.example",))) is not None
    assert "box.lan" in (names_of(ServerSettings(host="box.lan", keys=False)) or ())
