"""Requests that leave this house for an address that a client gave: public hosts only.

The name is resolved once, every address that it has must be a public one, and the connection goes
to the address that was checked; a redirect is never followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache

import httpx

from service.http.fair_limiter import FairLimiter
from service.http.inflight_limits import Shared

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LookUp = Callable[[str, int], list[str]]
"""Host and port to addresses."""

_UNICAST = ipaddress.ip_network("2000::/3")
"""Block of IPv6 that is assigned to hosts of the internet."""
_TRANSLATED = tuple(
    map(ipaddress.ip_network, ("2002::/16", "2001::/32", "192.88.99.0/24", "192.31.196.0/24"))
)
"""6to4 and Teredo: public by the registry, yet they can lead to any IPv4 address. (So can NAT64,
which lies outside of `_UNICAST`.) Of IPv4 the relays of 6to4, and AS112's sinks."""

LOOKUPS, LOOKUPS_EACH = 32, 8
"""Names that one resolver looks up at the same time, in all and of a tenant; each may take as long
as its name server wants."""
WAITING, WAITING_EACH = 512, 128
"""Requests that are looked up or fetched for or wait for that, in all and of a tenant."""
LOOKUP_S = 5.0
REFUSED_S = 0.25
"""A name is refused after a multiple of this: how long it took says nothing about it."""
CONNECTIONS = httpx.Limits(max_connections=100, max_keepalive_connections=0)
"""Connection limits without keep-alive: a connection is known by its address, and must not serve
another host there, for whose name its certificate was not checked."""


class ForbiddenAddress(httpx.ConnectError):
    """The host is inside our own network, or might be, or there is none: all of it said alike."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the host {host!r} cannot be reached: it has to be one of the public internet"
        )


def is_allowed(address: Address, networks: Sequence[Network] = ()) -> bool:
    """Return whether a client may make us connect to that address."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if any(address in network for network in networks):
        return True
    if address.version == 6 and address not in _UNICAST:
        return False
    translated = any(address in network for network in _TRANSLATED)
    return address.is_global and not (address.is_multicast or address.is_reserved or translated)


def host_of(url: httpx.URL) -> str:
    """The host as it is looked up: `URL.host` decodes it, and fails where that cannot be done."""
    return url.raw_host.decode("ascii")


def look_up(host: str, port: int) -> list[str]:
    """Look up a host's addresses; an empty list where there is no such host."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]).partition("%")[0] for entry in found]


class Resolver:
    """Looks hosts up, each in a thread, for which its tenant has a place until that has ended."""

    def __init__(self, networks: Sequence[Network] = (), look_up: LookUp = look_up) -> None:
        """Make a resolver without work.

        Args:
            networks: that may be reached besides the public internet.
            look_up: takes as long as it likes.
        """
        self._networks = networks
        self._look_up = look_up
        line = Shared("hosts to look up", "too_many_lookups", WAITING, WAITING_EACH)
        self.places = FairLimiter(LOOKUPS, LOOKUPS_EACH, line=line)

    async def resolve(self, host: str, port: int, tenant: str) -> str:
        """Look up a host and return one of its addresses, after checking all of them.

        Raises:
            ForbiddenAddress: one of them is not public, nor in `networks`; or there is none.
            Busy, Unavailable: too many wait for a lookup.
        """
        place = await self.places.take(tenant)
        loop, found = asyncio.get_running_loop(), list[str]()
        began = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOKUP_S):
                found = await self._in_thread(host, port, place)
        addresses = [ipaddress.ip_address(address) for address in found]
        if found and all(is_allowed(address, self._networks) for address in addresses):
            return found[0]
        if not _is_literal(host):
            await asyncio.sleep((began - loop.time()) % REFUSED_S)
        raise ForbiddenAddress(host)

    async def _in_thread(self, host: str, port: int, place: ExitStack) -> list[str]:
        """The place is closed when the thread ends, whoever waits for it; the process does not."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def end(addresses: list[str]) -> None:
            place.close()
            if not found.done():
                found.set_result(addresses)

        def run() -> None:
            addresses = self._look_up(host, port)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, addresses)

        try:
            threading.Thread(target=run, name="lookup", daemon=True).start()
        except RuntimeError:  # the process has too many
            end([])
        return await found


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@cache
def tls_context() -> ssl.SSLContext:
    """Read the certificate authorities once: it takes 60 ms."""
    return httpx.create_ssl_context(trust_env=False)


class PublicTransport(httpx.AsyncHTTPTransport):
    """Connects to checked addresses only; name and certificate stay those of the host.

    A request's extension `tenant` says for whom its host is looked up.
    """

    def __init__(self, resolver: Resolver) -> None:
        super().__init__(verify=tls_context(), retries=0, trust_env=False, limits=CONNECTIONS)
        self._resolver = resolver

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to an address that is public, resolved once.

        Raises: ForbiddenAddress: it is not.
        """
        host = host_of(request.url)
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        tenant = request.extensions["tenant"]
        address = await self._resolver.resolve(host, port, tenant)
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        return await super().handle_async_request(request)


def client(resolver: Resolver, timeout_s: float) -> httpx.AsyncClient:
    """A client for addresses that came from outside, with connections of its own."""
    return httpx.AsyncClient(
        transport=PublicTransport(resolver),
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
        headers={
            "User-Agent": "atelier",
            "Accept-Encoding": "identity",
            "Connection": "close",
        },
    )


async def fetch(
    http: httpx.AsyncClient, url: str, tenant: str, *, max_bytes: int, timeout_s: float
) -> bytes:
    """The body behind an address, whole.

    Raises:
        Busy, Unavailable: too many wait for a lookup.
        httpx.HTTPError: no such host, a forbidden one, or no good answer.
        ValueError: it is larger than `max_bytes`.
        TimeoutError: it took longer than `timeout_s` in all.
    """
    whose = {"tenant": tenant}
    async with asyncio.timeout(timeout_s), http.stream("GET", url, extensions=whose) as response:
        if not response.is_success:
            raise httpx.HTTPStatusError(
                f"it answered {response.status_code}", request=response.request, response=response
            )
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                raise ValueError(f"it has more than {max_bytes} bytes")
    return bytes(body)
