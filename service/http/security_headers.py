"""Headers that tell browsers to trust no more of an answer than it needs."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.headers import SAFE_HEADERS

MEDIA_POLICY = "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'"
"""Policy of files, which browsers wrap into a page of their own."""

Headers = list[tuple[bytes, bytes]]


def _raw(headers: Mapping[str, str]) -> Headers:
    """Return headers as ASGI has them."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


_SAFE = _raw(SAFE_HEADERS)
_SAFE_OF_MEDIA = _raw({**SAFE_HEADERS, "Content-Security-Policy": MEDIA_POLICY})


class SecureAnswers:
    """ASGI middleware that adds a Content-Security-Policy and its like to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers to each answer."""

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
