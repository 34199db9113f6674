"""Request ids, which connect a response with log lines and the job."""

from __future__ import annotations

import re
import secrets

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.tracing.log_context import note

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
