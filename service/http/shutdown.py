"""Responses to requests that the server cancels at the end of its shutdown."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.forms import answer
from service.errors.problems import Unavailable

MESSAGE = "the server is stopping; try again (with an Idempotency-Key a repeat is safe)"
RETRY_AFTER_S = 2.0


class RefuseWhenCancelled:
    """ASGI middleware that responds 503 to a request that uvicorn cancels.

    uvicorn cancels the requests that are unfinished after `server.shutdown_grace_s`, such as those
    that wait for Redis, and would respond 500 in plain text.

    Args:
        stopping: set when the shutdown begins.
    """

    def __init__(self, app: ASGIApp, stopping: asyncio.Event) -> None:
        self._app, self._stopping = app, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app; respond 503 if it is cancelled before its response began."""
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if scope["type"] != "http" or has_begun or not self._stopping.is_set() or not task:
                raise
            task.uncancel()
            problem = Unavailable(MESSAGE, code="server_stopping", retry_after_s=RETRY_AFTER_S)
            await answer(Request(scope, receive), problem)(scope, receive, send)
