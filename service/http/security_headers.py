"""Security headers that restrict how browsers handle responses."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.headers import SAFE_HEADERS

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
