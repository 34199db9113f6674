"""Headers that tell browsers to trust no more of an answer than it needs."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.headers import SAFE_HEADERS

MEDIA_POLICY = "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'"
"""Policy of files, which browsers wrap into a page of their own."""


class SecureAnswers:
    """ASGI middleware that adds a Content-Security-Policy and its like to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers to each answer."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, with_headers)


def _add(headers: MutableHeaders) -> None:
    if headers.get("content-type", "").startswith(("image/", "video/")):
        headers.setdefault("Content-Security-Policy", MEDIA_POLICY)
    for name, value in SAFE_HEADERS.items():
        headers.setdefault(name, value)
