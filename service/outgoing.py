"""Requests that leave this house for an address that a client gave: public hosts only.

The name is resolved once, every address that it has must be a public one, and the connection goes
to the address that was checked; a redirect is never followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is given out to hosts of the internet."""
_TRANSLATED = tuple(ipaddress.ip_network(network) for network in ("2002::/16", "2001::/32"))
"""6to4 and Teredo: public by the registry, yet they can lead to any IPv4 address. (So can NAT64,
which lies outside of `_UNICAST`.)"""

LOOKUPS = 32
"""Names that are looked up at the same time; each may take as long as its name server wants."""
LOOKUP_S = 5.0
REFUSED_S = 0.25
"""A name is refused after a multiple of this: how long it took says nothing about it."""
CONNECTIONS = httpx.Limits(max_connections=100, max_keepalive_connections=0)
"""Each request has a connection of its own: one is known by its address, and must not serve another
host there, for whose name its certificate was not checked."""

_lookups = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="lookup")


class ForbiddenAddress(httpx.ConnectError):
    """The host is inside our own network, or might be, or there is none: all of it said alike."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the host {host!r} cannot be reached: it has to be one of the public internet"
        )


def is_allowed(address: Address, networks: Sequence[Network] = ()) -> bool:
    """Whether a client may make us talk to that address."""
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


async def resolve(host: str, port: int, networks: Sequence[Network] = ()) -> str:
    """One address of the host, after all of them were checked.

    Raises: ForbiddenAddress: one of them is not public, nor in `networks`; or there is none.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(LOOKUP_S):
            found = await loop.run_in_executor(_lookups, _look_up, host, port)
    except (OSError, UnicodeError, TimeoutError):
        found = []
    if found and all(is_allowed(ipaddress.ip_address(address), networks) for address in found):
        return found[0]
    if not _is_literal(host):
        await asyncio.sleep((began - loop.time()) % REFUSED_S)
    raise ForbiddenAddress(host)


def _look_up(host: str, port: int) -> list[str]:
    """Raises: OSError, UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]).partition("%")[0] for entry in found]


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class PublicTransport(httpx.AsyncHTTPTransport):
    """Connects to checked addresses only; name and certificate stay those of the host."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        super().__init__(retries=0, trust_env=False, limits=CONNECTIONS)
        self._networks = networks

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = host_of(request.url)
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        address = await resolve(host, port, self._networks)
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        return await super().handle_async_request(request)


def client(networks: Sequence[Network], timeout_s: float) -> httpx.AsyncClient:
    """A client for addresses that came from outside, with connections of its own."""
    return httpx.AsyncClient(
        transport=PublicTransport(networks),
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
        headers={
            "User-Agent": "atelier",
            "Accept-Encoding": "identity",
            "Connection": "close",
        },
    )


async def fetch(http: httpx.AsyncClient, url: str, *, max_bytes: int, timeout_s: float) -> bytes:
    """The body behind an address, whole.

    Raises:
        httpx.HTTPError: no such host, a forbidden one, or no good answer.
        ValueError: it is larger than `max_bytes`.
        TimeoutError: it took longer than `timeout_s` in all.
    """
    async with asyncio.timeout(timeout_s), http.stream("GET", url) as response:
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
