"""Check of the Host header against DNS rebinding.

A foreign page can resolve its own name to this server and then read responses as same-origin. Its
requests have that name in `Host`, never an IP address: only pages of this server send that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.exposure import wants_keys
from service.errors.forms import answer
from service.errors.problems import Malformed, Misdirected, Problem
from service.settings.server import ServerSettings

WATCHED_PATHS = frozenset(("/healthz", "/readyz", "/metrics"))
"""Paths that probes and Prometheus request under any host name. They reveal nothing about
tenants."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]{1,255})(?::[0-9]{0,5})?", re.ASCII)
LOOPBACK = ("localhost", "*.localhost")
"""Names that browsers always resolve to this machine."""


def host_of(values: Sequence[bytes]) -> str:
    """Return the name or address in a request's single Host header, without its port.

    Raises: Malformed: no header, several, or not a host.
    """
    if len(values) != 1:
        raise Malformed("send one Host header" + (", not several" if values else ""))
    match = _HOST.fullmatch(values[0].decode("latin-1").lower())
    if not match:
        raise Malformed("the Host header is not a host's name or address")
    return match[1].removesuffix(".")


@lru_cache(maxsize=256)
def is_address(host: str) -> bool:
    """Return whether a host is an IP address, which cannot be resolved elsewhere."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_allowed(host: str, names: Sequence[str]) -> bool:
    """Check whether the names include that host, literally or by a `*.` pattern."""
    return any(
        host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in names
    )


def names_of(server: ServerSettings) -> tuple[str, ...] | None:
    """Return the allowed host names; None: any, because keys protect the server."""
    if not server.hosts and wants_keys(server, server.host):
        return None
    names = (server.host, server.published_at or "", *server.hosts)
    return (*LOOPBACK, *(name.lower().removesuffix(".") for name in names if name))


class CheckHost:
    """ASGI middleware that rejects requests for other hosts than those of `names_of`."""

    def __init__(self, app: ASGIApp, names: tuple[str, ...] | None) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request for a host that is not allowed, and pass on others."""
        app = self._app
        if scope["type"] == "http" and (problem := self._problem(scope)):
            app = answer(Request(scope), problem)
        await app(scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        values = [value for name, value in scope["headers"] if name == b"host"]
        is_watched = scope["path"] in WATCHED_PATHS
        if not values and is_watched and scope["http_version"] == "1.0":
            return None
        try:
            host = host_of(values)
        except Malformed as error:
            return error
        if is_watched or self._names is None or is_address(host) or is_allowed(host, self._names):
            return None
        return Misdirected(
            f"this server is not known as {host!r}; call it by its address, or have its operator"
            " list the name (server.hosts)"
        )
