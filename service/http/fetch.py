"""Outgoing requests to URLs supplied by clients: public hosts only.

The name is resolved once, and all its addresses must be public. The connection goes to a checked
address. Redirects are not followed.
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
from service.http.inflight_limits import SharedLimit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LookUp = Callable[[str, int], list[str]]
"""Function from host and port to addresses."""

_UNICAST = ipaddress.ip_network("2000::/3")
"""IPv6 block assigned to hosts of the internet."""
_TRANSLATED = tuple(
    map(
        ipaddress.ip_network,
        (
            *("2002::/16", "2001::/32", "2001:4:112::/48", "2620:4f:8000::/48"),
            *("192.88.99.0/24", "192.31.196.0/24", "192.175.48.0/24", "192.52.193.0/24"),
        ),
    )
)
"""Networks that are public by the registry but lead elsewhere. 6to4 and Teredo can reach any IPv4
address. (So can NAT64, which is outside `_UNICAST`.) The others are AS112's sinks, and relays of
6to4 and of AMT."""

LOOKUPS, LOOKUPS_EACH = 32, 8
"""Maximum concurrent lookups of one resolver, in total and per tenant. The name server determines
how long each takes."""
WAITING, WAITING_EACH = 512, 128
"""Maximum requests that perform or wait for a lookup or fetch, in total and per tenant."""
LOOKUP_S = 5.0
REFUSED_S = 0.25
"""Rejections are delayed to a multiple of this, so that their timing reveals nothing about the
name."""
CONNECTIONS = httpx.Limits(max_connections=100, max_keepalive_connections=0)
"""Connection limits without keep-alive. Connections are pooled by address, and a pooled connection
must not serve another host, for whose name its certificate was not checked."""


class ForbiddenAddress(httpx.ConnectError):
    """Host that is private, possibly private, or unknown; the message is the same."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the host {host!r} cannot be reached: its address must be on the public internet"
        )


def is_allowed(address: Address, networks: Sequence[Network] = ()) -> bool:
    """Check that clients may make this server connect to an address."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if any(address in network for network in networks):
        return True
    if address.version == 6 and address not in _UNICAST:
        return False
    translated = any(address in network for network in _TRANSLATED)
    return address.is_global and not (address.is_multicast or address.is_reserved or translated)


def host_of(url: httpx.URL) -> str:
    """Return the host in the form for lookups. `URL.host` decodes it, which can fail."""
    return url.raw_host.decode("ascii")


def look_up(host: str, port: int) -> list[str]:
    """Look up a host's addresses; an empty list if the host does not exist."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]).partition("%")[0] for entry in entries]


class Resolver:
    """DNS resolver for clients' hosts. Each lookup runs in a thread and holds its tenant's slot."""

    def __init__(self, networks: Sequence[Network] = (), look_up: LookUp = look_up) -> None:
        """Create a DNS resolver without active lookups.

        Args:
            networks: allowed in addition to the public internet.
            look_up: may block for any time.
        """
        self._networks = networks
        self._look_up = look_up
        line = SharedLimit("hosts to look up", "too_many_lookups", WAITING, WAITING_EACH)
        self.slots = FairLimiter(LOOKUPS, LOOKUPS_EACH, line=line)

    async def resolve(self, host: str, port: int, tenant: str) -> str:
        """Look up a host and return one of its addresses, after checking all of them.

        Raises:
            ForbiddenAddress: an address is neither public nor in `networks`; or the host does not
                exist.
            Busy, Unavailable: too many wait for a lookup.
        """
        place = await self.slots.acquire(tenant)
        loop, results = asyncio.get_running_loop(), list[str]()
        began = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOKUP_S):
                results = await self._in_thread(host, port, place)
        addresses = [ipaddress.ip_address(address) for address in results]
        if results and all(is_allowed(address, self._networks) for address in addresses):
            return results[0]
        if not _is_literal(host):
            await asyncio.sleep((began - loop.time()) % REFUSED_S)
        raise ForbiddenAddress(host)

    async def _in_thread(self, host: str, port: int, place: ExitStack) -> list[str]:
        """Look up in a daemon thread; the slot is released when the thread ends."""
        loop = asyncio.get_running_loop()
        results: asyncio.Future[list[str]] = loop.create_future()

        def end(addresses: list[str]) -> None:
            place.close()
            if not results.done():
                results.set_result(addresses)

        def run() -> None:
            addresses = self._look_up(host, port)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, addresses)

        try:
            threading.Thread(target=run, name="lookup", daemon=True).start()
        except RuntimeError:  # the process has too many threads
            end([])
        return await results


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@cache
def tls_context() -> ssl.SSLContext:
    """Create the TLS context with the certificate authorities once, because it takes 60 ms."""
    return httpx.create_ssl_context(trust_env=False)


class PublicTransport(httpx.AsyncHTTPTransport):
    """HTTP transport that connects only to checked addresses.

    SNI and certificate check use the host name. A request's extension `tenant` is the tenant whose
    lookup limits apply.
    """

    def __init__(self, resolver: Resolver) -> None:
        super().__init__(verify=tls_context(), retries=0, trust_env=False, limits=CONNECTIONS)
        self._resolver = resolver

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to a public address of its host, resolved once.

        Raises: ForbiddenAddress: it has none.
        """
        host = host_of(request.url)
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        tenant = request.extensions["tenant"]
        address = await self._resolver.resolve(host, port, tenant)
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        return await super().handle_async_request(request)


def client(resolver: Resolver, timeout_s: float) -> httpx.AsyncClient:
    """Create a client for URLs supplied by clients, with its own connections."""
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
    """Fetch the whole body of a URL.

    Raises:
        Busy, Unavailable: too many wait for a lookup.
        httpx.HTTPError: unknown or forbidden host, or an error response.
        ValueError: larger than `max_bytes`.
        TimeoutError: longer than `timeout_s` in total.
    """
    extensions = {"tenant": tenant}
    async with (
        asyncio.timeout(timeout_s),
        http.stream("GET", url, extensions=extensions) as response,
    ):
        if not response.is_success:
            raise httpx.HTTPStatusError(
                f"the server responded with {response.status_code}",
                request=response.request,
                response=response,
            )
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                raise ValueError(f"it has more than {max_bytes} bytes")
    return bytes(body)
