"""JSON responses that begin with white space while their job runs.

Proxies close a connection on which nothing arrives for a while, often 60 s. JSON may begin with
white space, which clients ignore. Source: RFC 8259, section 2.

Interim responses (102 Processing) would keep the status open, but Python's `http.client`, which
`requests` uses, takes every 1xx other than 100 for the final response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from service.errors.handlers import response_to
from service.errors.late_status import record_late_status
from service.jobs.redis.tasks import cancel

SPACE = b" "


@dataclass(frozen=True)
class Head:
    """Status and headers of a padded JSON response, known before its body."""

    headers: Mapping[str, str]
    status: int = 200


async def padded_json(
    request: Request, work: Coroutine[Any, Any, Response], head: Head, every_s: float
) -> Response:
    """Return the JSON response of `work`; if it takes longer than `every_s`, a padded one.

    Errors of the first interval are raised. Later ones are sent as bodies after the same head, in
    the error format of the request's path.

    Args:
        head: the head of a successful response.
        every_s: interval of the white space; 0: none, and errors are always raised.
    """
    if not every_s:
        return await work
    working = asyncio.create_task(work)
    try:
        await asyncio.wait((working,), timeout=every_s)
    except asyncio.CancelledError:
        await cancel(working)
        raise
    return working.result() if working.done() else _PaddedJson(request, working, head, every_s)


class _PaddedJson(Response):
    """Response that sends white space at an interval, then the body of another response."""

    media_type = "application/json"

    def __init__(
        self, request: Request, working: asyncio.Task[Response], head: Head, every_s: float
    ) -> None:
        super().__init__(
            status_code=head.status, headers={**head.headers, "X-Accel-Buffering": "no"}
        )
        del self.headers["Content-Length"]
        self._request = request
        self._working = working
        self._every_s = every_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, white space until the work ends, and the response's body."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        try:
            await send({"type": "http.response.start", **head})
            while not self._working.done():
                await send({"type": "http.response.body", "body": SPACE, "more_body": True})
                await asyncio.wait((self._working,), timeout=self._every_s)
            response = await self._result(scope)
        finally:
            await cancel(self._working)
        await response(scope, receive, _without_start(send))

    async def _result(self, scope: Scope) -> Response:
        """Return the work's response, or the response to its exception."""
        try:
            return self._working.result()
        except Exception as error:
            response = await response_to(self._request, error)
            record_late_status(scope, response.status_code)
            return response


def _without_start(send: Send) -> Send:
    """Return a `send` that forwards only the messages of a response's body."""

    async def send_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send(message)

    return send_body
