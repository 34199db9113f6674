"""Middleware for HEAD requests, security headers, cross-origin calls (CORS) and request ids.

Source: RFC 9110, section 9.3.2; Fetch standard, section 3.2.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence

from fastapi import Request
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.problems import SAFE_HEADERS
from service.tracing.log_context import note

_IS_HEAD = "atelier.head"
_ROUTE_KEYS = ("route", "path_params")
"""Scope entries of the router, which outer middleware reads."""


def is_head(request: Request) -> bool:
    """Report whether the response needs no body. Routes check it before expensive work."""
    return bool(request.scope.get(_IS_HEAD))


class HeadResponses:
    """ASGI middleware that answers HEAD like GET, with the same headers and no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a HEAD to the app as a GET. The server's scope still has the method HEAD."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)
        inner = {**scope, "method": "GET", _IS_HEAD: True}
        try:
            await self._app(inner, receive, _without_body(send))
        finally:
            scope.update({name: inner[name] for name in _ROUTE_KEYS if name in inner})


def _without_body(send: Send) -> Send:
    """Return a `send` that forwards the headers, and an empty final body."""
    is_over = False

    async def send_headers(message: Message) -> None:
        nonlocal is_over
        if is_over:
            return
        if message["type"] == "http.response.body":
            is_over, message = True, {"type": "http.response.body"}
        await send(message)

    return send_headers


MEDIA_POLICY = "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'"
"""Policy of files, which browsers wrap in a generated page."""

Headers = list[tuple[bytes, bytes]]


def _raw(headers: Mapping[str, str]) -> Headers:
    """Convert HTTP headers to ASGI's list of lower-case byte pairs."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


_SAFE = _raw(SAFE_HEADERS)
_SAFE_OF_MEDIA = _raw({**SAFE_HEADERS, "Content-Security-Policy": MEDIA_POLICY})


class SecureResponses:
    """ASGI middleware that adds a Content-Security-Policy and similar headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the security headers to each response."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add(message["headers"])
            await send(message)

        await self._app(scope, receive, with_headers)


def _add(headers: Headers) -> None:
    given = dict(headers)
    is_media = given.get(b"content-type", b"").startswith((b"image/", b"video/"))
    safe = _SAFE_OF_MEDIA if is_media else _SAFE
    headers += [(name, value) for name, value in safe if name not in given]


METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
EXPOSED = (
    "Accept-Ranges",
    "Content-Disposition",
    "Content-Range",
    "ETag",
    "Location",
    "OpenAI-Poll-After-Ms",
    "Preference-Applied",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "Retry-After-Ms",
    "WWW-Authenticate",
    "X-Atelier-Cache",
    "X-Atelier-Warnings",
    "X-Fal-Error-Type",
    "X-Job-Id",
    "X-Request-Id",
    "X-Should-Retry",
)
"""Response headers that scripts of such a page may read, in addition to the CORS-safelisted
ones."""
PREFLIGHT_S = 3600


class AllowOrigins(CORSMiddleware):
    """ASGI middleware that permits cross-origin calls from these origins, without cookies.

    All request headers are allowed, because clients send their own, such as the API key. Public
    pages may also call a server on a private network, for which some browsers send a preflight.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=EXPOSED,
            max_age=PREFLIGHT_S,
        )


HEADER = "X-Request-Id"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._~:/+=@-]{1,128}")
_STATE = "request_id"
_RAW_HEADER = HEADER.lower().encode()


class AssignRequestIds:
    """ASGI middleware that accepts a client's `X-Request-Id`, or creates one, and returns it.

    Malformed or repeated ids are replaced, because people and programs read the logs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Assign the id to the request, its log lines and its response."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = _given(scope) or new_request_id()
        scope.setdefault("state", {})[_STATE] = request_id
        note(request_id=request_id)

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [header for header in message["headers"] if header[0] != _RAW_HEADER]
                message["headers"] = [*others, (_RAW_HEADER, request_id.encode())]
            await send(message)

        await self._app(scope, receive, with_id)


def request_id_of(request: Request) -> str:
    """Return the id that `AssignRequestIds` assigned to a request."""
    return str(request.scope["state"][_STATE])


def new_request_id() -> str:
    """Create a random request id."""
    return "req_" + secrets.token_hex(12)


def _given(scope: Scope) -> str | None:
    given = [value.decode("latin-1") for name, value in scope["headers"] if name == _RAW_HEADER]
    return given[0] if len(given) == 1 and _WELL_FORMED.fullmatch(given[0]) else None
