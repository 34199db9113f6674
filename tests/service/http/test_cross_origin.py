"""CORS: origins that the operator lists may call the API, without cookies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from service.app import create_app
from service.auth.exposure import listening_at
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.redis import RedisSettings
from service.settings.section import ConfigError
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from tests.service.standin import MODEL, StandIn

STUDIO = "https://studio.example"
PREFLIGHT = {
    "Origin": STUDIO,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,prefer,idempotency-key",
}
CAT = {"prompt": "a cat", "model": MODEL}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return with_server(settings, cors_origins=(STUDIO,))


def with_server(settings: Settings, **server: Any) -> Settings:
    return settings.model_copy(update={"server": settings.server.model_copy(update=server)})


@pytest.fixture
async def closed(
    settings: Settings, queue: Queue, store: Store, redis_url: str
) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a server that requires keys."""
    redis = settings.model_copy(update={"redis": RedisSettings(url=redis_url)})
    app = create_app(with_server(redis, keys=True), queue, store)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http


async def test_a_preflight_is_answered_without_a_key(closed: httpx.AsyncClient) -> None:
    answer = await closed.options("/v1/generate", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == STUDIO
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"]
    assert {"authorization", "prefer", "idempotency-key"} <= {*allowed.split(",")}
    assert "access-control-allow-credentials" not in answer.headers


async def test_cross_origin_page_can_read_the_job_header(
    http: httpx.AsyncClient, pool: StandIn
) -> None:
    answer = await http.post("/v1/generate", json=CAT, headers={"Origin": STUDIO})
    assert answer.headers["access-control-allow-origin"] == STUDIO
    exposed = answer.headers["access-control-expose-headers"]
    assert {"Location", "X-Job-Id", "RateLimit", "Retry-After"} <= {*exposed.split(", ")}
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


async def test_pages_can_read_headers_of_other_apis(http: httpx.AsyncClient) -> None:
    message = {"prompt": "a cat"}
    answer = await http.post("/fal/run/none", json=message, headers={"Origin": STUDIO})
    exposed = {*answer.headers["access-control-expose-headers"].split(", ")}
    assert {"Retry-After-Ms", "X-Should-Retry", "OpenAI-Poll-After-Ms"} <= exposed
    assert "X-Fal-Error-Type" in exposed and "x-fal-error-type" in answer.headers
    cancel = PREFLIGHT | {"Access-Control-Request-Method": "PUT"}
    path = "/fal/queue/none/requests/job_0/cancel"
    assert (await http.options(path, headers=cancel)).status_code == 200


async def test_a_page_reads_why_it_was_refused(closed: httpx.AsyncClient) -> None:
    answer = await closed.get("/v1/jobs", headers={"Origin": STUDIO})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == STUDIO


async def test_a_page_reads_that_something_failed_here(
    app: FastAPI, http: httpx.AsyncClient
) -> None:
    """Responses to unhandled errors have the same headers as others."""

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError

    answer = await http.get("/broken", headers={"Origin": STUDIO})
    assert answer.status_code == 500
    assert answer.headers["access-control-allow-origin"] == STUDIO
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_cross_origin_page_can_read_the_misdirected_error(http: httpx.AsyncClient) -> None:
    wrong = {"Origin": STUDIO, "Host": "elsewhere.example"}
    answer = await http.get("/v1/models", headers=wrong)
    assert answer.status_code == 421
    assert answer.headers["access-control-allow-origin"] == STUDIO


async def test_a_page_of_the_internet_calls_a_private_network(http: httpx.AsyncClient) -> None:
    message = PREFLIGHT | {"Access-Control-Request-Private-Network": "true"}
    answer = await http.options("/v1/generate", headers=message)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-private-network"] == "true"
    other = message | {"Origin": "https://elsewhere.example"}
    assert (await http.options("/v1/generate", headers=other)).status_code == 400


async def test_other_origins_are_rejected(http: httpx.AsyncClient) -> None:
    other = PREFLIGHT | {"Origin": "https://elsewhere.example"}
    answer = await http.options("/v1/generate", headers=other)
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers
    answer = await http.get("/v1/models", headers=other)
    assert "access-control-allow-origin" not in answer.headers


async def test_cors_is_off_by_default(settings: Settings, queue: Queue, store: Store) -> None:
    app = create_app(with_server(settings, cors_origins=()), queue, store)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.options("/v1/generate", headers=PREFLIGHT)).status_code == 405
        answer = await http.get("/v1/models", headers={"Origin": STUDIO})
    assert [name for name in answer.headers if name.startswith("access-control")] == []


@pytest.mark.parametrize(
    "origin", ["studio.example", f"{STUDIO}/", f"{STUDIO}/app", "", "HTTPS://A"]
)
def test_invalid_origin_is_rejected(origin: str) -> None:
    with pytest.raises(
        ValidationError, match="is not an origin: write scheme, host and port alone"
    ):
        ServerSettings(cors_origins=(origin,))


def test_every_page_of_the_web_needs_a_key(settings: Settings) -> None:
    anyone = with_server(settings, cors_origins=("*",))
    with pytest.raises(ConfigError, match="list the origins, or set"):
        listening_at(anyone, "127.0.0.1")
    assert listening_at(anyone, "0.0.0.0").server.keys is True
