"""A client's address behind proxies: only listed proxies are trusted, from the header's end.

Clients connect from several addresses of this machine's 127.0.0.0/8.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from tests.service.conftest import served
from tests.service.standin import StandIn

PROXY, OTHER = "127.0.0.3", "127.0.0.2"
CLIENT, FORGED, SECOND, BALANCER = "203.0.113.5", "6.6.6.6", "10.0.0.9", "198.51.100.1"
LISTED = [f"{PROXY}/32", "10.0.0.0/8", f"{BALANCER}/32"]
Headers = list[tuple[str, str]]


@asynccontextmanager
async def connected(
    settings: Settings, queue: Queue, store: Store, peer: str, trusted: list[str]
) -> AsyncIterator[httpx.AsyncClient]:
    """Connect a client from address `peer` to a server that trusts the `trusted` networks."""
    server = settings.server.model_copy(
        update={"trusted_proxies": ServerSettings(trusted_proxies=trusted).trusted_proxies}
    )
    settings = settings.model_copy(update={"server": server})
    transport = httpx.AsyncHTTPTransport(local_address=peer)
    async with (
        served(create_app(settings, queue, store), settings) as address,
        httpx.AsyncClient(transport=transport, base_url=address, trust_env=False) as http,
    ):
        yield http


def forwarded(*texts: str) -> Headers:
    return [("X-Forwarded-For", text) for text in texts]


@pytest.mark.parametrize(
    ("peer", "trusted", "headers", "expected"),
    [
        (PROXY, [], forwarded(FORGED), PROXY),
        ("127.0.0.1", [], forwarded(FORGED), "127.0.0.1"),
        (OTHER, LISTED, forwarded(FORGED), OTHER),
        (OTHER, LISTED, forwarded(f"{FORGED}, {PROXY}"), OTHER),
        (OTHER, LISTED, [], OTHER),
        (PROXY, LISTED, [], PROXY),
        (PROXY, LISTED, forwarded(CLIENT), CLIENT),
        (PROXY, LISTED, forwarded(f"{FORGED}, {CLIENT}"), CLIENT),
        (PROXY, LISTED, forwarded(FORGED, CLIENT), CLIENT),
        (PROXY, LISTED, forwarded(f"{SECOND}, {CLIENT}"), CLIENT),
        (PROXY, LISTED, forwarded(f"{FORGED}, {CLIENT}, {SECOND}"), CLIENT),
        (PROXY, LISTED, forwarded(f"{FORGED},{CLIENT},{BALANCER}"), CLIENT),
        (PROXY, LISTED[:2], forwarded(f"{CLIENT},{BALANCER}"), BALANCER),
        (PROXY, LISTED, forwarded(f"{FORGED}, {CLIENT}:4711"), CLIENT),
        (PROXY, LISTED, forwarded("2001:db8::7"), "2001:db8::7"),
        (PROXY, LISTED, [("Forwarded", f"for={FORGED}"), ("X-Real-IP", FORGED)], PROXY),
    ],
    ids=[
        "no proxy is listed",
        "nor is this machine",
        "from another",
        "from another that names the proxy",
        "another without it",
        "the proxy without it",
        "of the proxy",
        "what a client wrote before it",
        "a second header",
        "a client that names a proxy",
        "two proxies",
        "a balancer's own address",
        "a balancer's that is not listed",
        "with a port",
        "IPv6",
        "other headers",
    ],
)
async def test_the_address_in_the_audit_log(
    settings: Settings, queue: Queue, store: Store, peer: str, trusted: list[str],
    headers: Headers, expected: str,
) -> None:  # fmt: skip
    async with connected(settings, queue, store, peer, trusted) as http:
        await http.post("/v1/admin/jobs/job_none/cancel", json={}, headers=headers)
        (act,) = (await http.get("/v1/admin/audit")).json()["data"]
    assert act["address"] == expected


@pytest.mark.parametrize(
    ("peer", "headers", "scheme"),
    [
        (PROXY, {"X-Forwarded-Proto": "https"}, "https"),
        (PROXY, {"X-Forwarded-Proto": "gopher"}, "http"),
        (PROXY, {}, "http"),
        (OTHER, {"X-Forwarded-Proto": "https"}, "http"),
    ],
)
async def test_the_scheme_of_links(
    settings: Settings, queue: Queue, store: Store, pool: StandIn, peer: str,
    headers: Mapping[str, str], scheme: str,
) -> None:  # fmt: skip
    body = {"prompt": "a cat", "response_format": "url"}
    async with connected(settings, queue, store, peer, LISTED) as http:
        answer = await http.post("/v1/images/generations", json=body, headers=headers)
    assert httpx.URL(answer.json()["data"][0]["url"]).scheme == scheme


async def test_environment_variables_trust_no_proxy(
    settings: Settings, queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set variables that uvicorn reads on its own; the server ignores them."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    for trusted in ([], ["10.0.0.0/8"]):
        async with connected(settings, queue, store, OTHER, trusted) as http:
            path = "/v1/admin/jobs/job_none/cancel"
            await http.post(path, json={}, headers=forwarded(FORGED))
            acts = (await http.get("/v1/admin/audit")).json()["data"]
        assert {act["address"] for act in acts} == {OTHER}


@pytest.mark.parametrize("wrong", ["*", "proxy.example", "10.0.0.1/8", "10.0.0.256"])
def test_networks_are_spelled_out(wrong: str) -> None:
    options: dict[str, Any] = {"trusted_proxies": [wrong]}
    with pytest.raises(ValidationError, match="trusted_proxies"):
        ServerSettings(**options)
