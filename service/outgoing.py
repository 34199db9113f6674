"""Requests that leave this house for an address that a client gave: public hosts only.

The name is resolved once, every address that it has must be a public one, and the connection goes
to the address that was checked; a redirect is never followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Sequence

import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_TRANSLATED = tuple(
    ipaddress.ip_network(network) for network in ("64:ff9b::/96", "2002::/16", "2001::/32")
)
"""NAT64, 6to4 and Teredo: public by the registry, yet they can lead to any IPv4 address."""


class ForbiddenAddress(httpx.ConnectError):
    """The host is, or might be, inside our own network."""


def is_allowed(address: Address, networks: Sequence[Network] = ()) -> bool:
    """Whether a client may make us talk to that address."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if any(address in network for network in networks):
        return True
    translated = any(address in network for network in _TRANSLATED)
    return address.is_global and not (address.is_multicast or address.is_reserved or translated)


async def resolve(host: str, port: int, networks: Sequence[Network] = ()) -> str:
    """One address of the host, after all of them were checked.

    Raises:
        ForbiddenAddress: one of them is not public, nor in `networks`.
        httpx.ConnectError: the name is unknown.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError(f"the host {host!r} is unknown: {error}") from error
    _check(host, (str(entry[4][0]) for entry in found), networks)
    return str(found[0][4][0])


def _check(host: str, addresses: Iterable[str], networks: Sequence[Network]) -> None:
    for text in addresses:
        if not is_allowed(ipaddress.ip_address(text.partition("%")[0]), networks):
            raise ForbiddenAddress(f"the host {host!r} is not on the public internet")


class PublicTransport(httpx.AsyncHTTPTransport):
    """Connects to checked addresses only; name and certificate stay those of the host."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        super().__init__(retries=0, trust_env=False)
        self._networks = networks

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        address = await resolve(host, port, self._networks)
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        return await super().handle_async_request(request)


def client(networks: Sequence[Network], timeout_s: float) -> httpx.AsyncClient:
    """A client for addresses that came from outside."""
    return httpx.AsyncClient(
        transport=PublicTransport(networks),
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
        headers={"User-Agent": "atelier", "Accept-Encoding": "identity"},
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
