"""Host names that requests may be for.

A page of a foreign origin can point its own name at this server (DNS rebinding) and then read
answers as its own. Its requests carry that name in `Host`; they never carry an address, because
then the page would have come from this server itself.
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
"""Paths that probes and Prometheus ask for by any host name; they show nothing of tenants."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]{1,255})(?::[0-9]{0,5})?", re.ASCII)
LOOPBACK = ("localhost", "*.localhost")
"""Names that resolve to this machine wherever a browser looks them up."""


def host_of(values: Sequence[bytes]) -> str:
    """The name or address of a request's one Host header, without its port.

    Raises: Malformed: there is none, there are several, or it is no host.
    """
    if len(values) != 1:
        raise Malformed("send one Host header" + (", not several" if values else ""))
    found = _HOST.fullmatch(values[0].decode("latin-1").lower())
    if not found:
        raise Malformed("the Host header is no name or address of a host")
    return found[1].removesuffix(".")


@lru_cache(maxsize=256)
def is_address(host: str) -> bool:
    """Return whether a host is a number, not a name that somebody could point elsewhere."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_known(host: str, names: Sequence[str]) -> bool:
    """Return whether the names include that host: itself, or by a `*.` in front of its ending."""
    return any(
        host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in names
    )


def names_of(server: ServerSettings) -> tuple[str, ...] | None:
    """Names that requests may be for; None: any, since keys protect what is behind them."""
    if not server.hosts and wants_keys(server, server.host):
        return None
    own = (server.host, server.published_at or "", *server.hosts)
    return (*LOOPBACK, *(name.lower().removesuffix(".") for name in own if name))


class CheckHost:
    """ASGI middleware that refuses requests for other hosts, by `names_of`."""

    def __init__(self, app: ASGIApp, names: tuple[str, ...] | None) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request to a host that is not allowed; pass on every other."""
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
        if is_watched or self._names is None or is_address(host) or is_known(host, self._names):
            return None
        return Misdirected(
            f"this server is not known as {host!r}; call it by its address, or have its operator"
            " list the name (server.hosts)"
        )
