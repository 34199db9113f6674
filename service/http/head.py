"""HEAD for every resource with GET. Source: RFC 9110, section 9.3.2."""

from __future__ import annotations

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_IS_HEAD = "atelier.head"
_FOUND = ("route", "path_params")
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
            scope.update({name: inner[name] for name in _FOUND if name in inner})


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
