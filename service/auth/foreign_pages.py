"""Protection of servers without keys against requests from foreign pages (CSRF).

A page can post forms to any address that its browser reaches, without reading the responses. A
server with keys rejects them, because they carry no key.

Source: Go, net/http, CrossOriginProtection; Fetch Metadata Request Headers, section 2.3.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.exposure import wants_keys
from service.errors.forms import answer
from service.errors.problems import Forbidden
from service.settings.server import ANY_ORIGIN, ServerSettings

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods without side effects. Browsers prevent foreign pages from reading the responses."""
SAME_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site for the server's own pages, and for navigation by the user."""


class RefuseForeignPages:
    """ASGI middleware that rejects foreign pages' unsafe methods on a server without keys."""

    def __init__(self, app: ASGIApp, server: ServerSettings) -> None:
        self._app = app
        self._server = server
        self._is_open = not wants_keys(server, server.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a foreign page's unsafe request, and pass on others."""
        app = self._app
        if self._is_open and scope["type"] == "http" and scope["method"] not in SAFE_METHODS:
            try:
                check_origin(Headers(scope=scope), self._server)
            except Forbidden as problem:
                app = answer(Request(scope), problem)
        await app(scope, receive, send)


def check_origin(headers: Headers, server: ServerSettings) -> None:
    """Reject a request from a page that is neither this server's nor in `cors_origins`.

    Clients other than browsers send neither Origin nor Sec-Fetch-Site.

    Raises: Forbidden.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin in server.cors_origins or ANY_ORIGIN in server.cors_origins:
        return
    if site is None:
        hosts = {headers.get("host", ""), _host_of(server.public_url or "")} - {""}
        is_foreign = origin is not None and _host_of(origin) not in hosts
    else:
        is_foreign = site not in SAME_SITES
    if is_foreign:
        site_name = repr(origin[:200]) if origin else "another site"
        raise Forbidden(
            f"pages of {site_name} may not call this server; its operator may list the origin"
            " (server.cors_origins)",
            code="foreign_origin",
        )


def _host_of(origin: str) -> str:
    """Return an origin's host and port; empty: it has none, such as a page in a file."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
