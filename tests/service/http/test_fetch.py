"""Outgoing requests to URLs supplied by clients: public hosts only, no redirects, bounded."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from ipaddress import ip_address, ip_network

import httpx
import pytest

from service.errors.problems import Busy
from service.http import fetch as outgoing
from service.jobs.redis.tasks import cancel
from tests.service.eventually import DEADLINE_S, eventually

LOOPBACK = (ip_network("127.0.0.0/8"),)
CLOCK_S = 0.01
"""Seconds by which a timer may fire early."""


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "192.88.99.1",
        "192.31.196.1",
        "192.52.193.1",
        "192.175.48.1",
        "2620:4f:8000::1",
        "2001:0:7f00:1::",
        "fec0::1",
        "feff::1",
        "64:ff9b:1::7f00:1",
        "::127.0.0.1",
        "::ffff:0:7f00:1",
        "ff0e::1",
        "100::1",
        "4000::1",
    ],
)
def test_inner_addresses_are_forbidden(address: str) -> None:
    assert not outgoing.is_allowed(ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert outgoing.is_allowed(ip_address(address))


def test_networks_can_be_opened_up() -> None:
    assert outgoing.is_allowed(ip_address("::ffff:127.0.0.1"), LOOPBACK)
    assert not outgoing.is_allowed(ip_address("10.0.0.1"), LOOPBACK)


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """A small local web server."""
    pages = {
        b"/small": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
        b"/large": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000,
        b"/moved": b"HTTP/1.1 302 Found\r\nLocation: /small\r\nContent-Length: 0\r\n\r\n",
        b"/wrong": b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"/slow": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo",
    }
    answering: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = b"%d" % writer.get_extra_info("peername")[1]
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                path = request.split()[1]
                dynamic = {b"/host": host_in(request), b"/port": port}
                writer.write(saying(dynamic[path]) if path in dynamic else pages[path])

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.create_task(answer(reader, writer)))

    def host_in(request: bytes) -> bytes:
        return next(x for x in request.split(b"\r\n") if x.lower().startswith(b"host:"))

    def saying(text: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield f"http://localhost:{server.sockets[0].getsockname()[1]}"
    server.close()
    await cancel(*answering)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    resolver = outgoing.Resolver((*LOOPBACK, ip_network("::1/128")))
    async with outgoing.client(resolver, timeout_s=DEADLINE_S) as http:
        yield http


async def fetch(http: httpx.AsyncClient, url: str) -> bytes:
    return await outgoing.fetch(http, url, "acme", max_bytes=1000, timeout_s=DEADLINE_S)


async def test_a_body_is_fetched(http: httpx.AsyncClient, site: str) -> None:
    assert await fetch(http, f"{site}/small") == b"body"


async def test_the_host_keeps_its_name(http: httpx.AsyncClient, site: str) -> None:
    assert (await fetch(http, f"{site}/host")).lower().startswith(b"host: localhost:")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "2130706433", "0x7f.1"])
async def test_own_host_is_unreachable(host: str, site: str) -> None:
    port = site.rpartition(":")[2]
    async with outgoing.client(outgoing.Resolver(), timeout_s=DEADLINE_S) as http:
        with pytest.raises(httpx.ConnectError):
            await fetch(http, f"http://{host}:{port}/small")


async def test_an_unknown_host(http: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ConnectError, match="cannot be reached"):
        await fetch(http, "http://nowhere.invalid/")


async def test_refusal_does_not_reveal_whether_a_host_exists() -> None:
    """Names of internal hosts and unknown names get the same message after the same delay."""
    loop = asyncio.get_running_loop()
    for host in ("localhost", "nowhere.invalid", "x" * 64, "xn--zzzzzzzzz99999"):
        began = loop.time()
        with pytest.raises(outgoing.ForbiddenAddress) as error:
            await outgoing.Resolver().resolve(host, 80, "acme")
        message = f"the host {host!r} cannot be reached: its address must be on the public internet"
        assert str(error.value) == message and error.value.__cause__ is None
        assert loop.time() - began >= outgoing.REFUSED_S - CLOCK_S


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "::1%lo", "fe80::1%eth0", "[::1]"],
)
async def test_other_spellings_of_inner_addresses(host: str) -> None:
    with pytest.raises(outgoing.ForbiddenAddress):
        await outgoing.Resolver().resolve(host, 80, "acme")


async def test_all_addresses_of_a_host_have_to_be_public() -> None:
    addresses = ["1.1.1.1", "169.254.169.254"]
    resolver = outgoing.Resolver(look_up=lambda host, port: addresses)
    for _ in addresses:
        with pytest.raises(outgoing.ForbiddenAddress):
            await resolver.resolve("both.example", 80, "acme")
        addresses.reverse()
    addresses.remove("169.254.169.254")
    assert await resolver.resolve("both.example", 80, "acme") == "1.1.1.1"


async def test_a_connection_serves_one_host(http: httpx.AsyncClient, site: str) -> None:
    """Two names of one address: TLS would verify only the first name's certificate."""
    other = site.replace("localhost", "127.0.0.1")
    ports = {await fetch(http, f"{url}/port") for url in (site, other, site)}
    assert len(ports) == 3


@pytest.mark.parametrize("path", ["moved", "wrong"])
async def test_only_a_plain_success_counts(http: httpx.AsyncClient, site: str, path: str) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        await fetch(http, f"{site}/{path}")


async def test_a_large_body_is_cut_off(http: httpx.AsyncClient, site: str) -> None:
    with pytest.raises(ValueError, match="1000 bytes"):
        await fetch(http, f"{site}/large")


async def test_a_slow_body_is_cut_off(http: httpx.AsyncClient, site: str) -> None:
    with pytest.raises(TimeoutError):
        await outgoing.fetch(http, f"{site}/slow", "acme", max_bytes=1000, timeout_s=0.2)


async def test_slow_dns_of_a_tenant_delays_no_other_tenant() -> None:
    """A thread whose caller has been canceled still counts for its tenant."""
    answers, running = threading.Event(), Counter[str]()

    def look_up(host: str, port: int) -> list[str]:
        if host == "slow":
            running[host] += 1
            assert answers.wait(DEADLINE_S)
        return ["1.1.1.1"]

    resolver = outgoing.Resolver(look_up=look_up)
    slow = [asyncio.create_task(resolver.resolve("slow", 80, "acme")) for _ in range(60)]

    async def all_places_are_taken() -> bool:
        return running["slow"] == outgoing.LOOKUPS_EACH

    await eventually(all_places_are_taken)
    assert await resolver.resolve("fast", 80, "zoo") == "1.1.1.1"
    await cancel(*slow)
    assert resolver.slots.tenants["acme"] == outgoing.LOOKUPS_EACH
    assert await resolver.resolve("fast", 80, "zoo") == "1.1.1.1"
    answers.set()
    assert await resolver.resolve("fast", 80, "acme") == "1.1.1.1"
    assert running["slow"] == outgoing.LOOKUPS_EACH


async def test_hosts_that_wait_to_be_looked_up_are_bounded() -> None:
    answers = threading.Event()

    def look_up(host: str, port: int) -> list[str]:
        assert answers.wait(DEADLINE_S)
        return ["1.1.1.1"]

    resolver = outgoing.Resolver(look_up=look_up)
    waiting = [
        asyncio.create_task(resolver.resolve("slow", 80, "acme"))
        for _ in range(outgoing.WAITING_EACH)
    ]
    await asyncio.sleep(0)  # each requests a slot
    with pytest.raises(Busy) as busy:
        await resolver.resolve("slow", 80, "acme")
    assert busy.value.status == 429 and "Retry-After" in busy.value.headers
    answers.set()
    assert await asyncio.gather(*waiting) == ["1.1.1.1"] * outgoing.WAITING_EACH
    assert await resolver.resolve("slow", 80, "acme") == "1.1.1.1"
