"""Middleware that records each HTTP request as a trace span."""

from __future__ import annotations

from opentelemetry.trace import Span, SpanKind
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.late_status import final_status
from service.metrics.front_end import METHODS
from service.tracing import spans
from service.tracing.log_context import note

PROBES = frozenset(("/healthz", "/readyz", "/metrics"))
"""Paths that monitors poll every few seconds."""
SERVER_ERROR = 500


class TraceRequests:
    """ASGI middleware that records each request, up to its last response byte, as a span.

    Args:
        follows: whether to continue a client's `traceparent`.
    """

    def __init__(self, app: ASGIApp, follows: bool) -> None:
        self.app = app
        self._follows = follows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Record a span of the request, except for probes."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            return await self.app(scope, receive, send)
        parent = traceparent(Headers(scope=scope)) if self._follows else None
        status = SERVER_ERROR

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        span = spans.begin("HTTP", parent=parent, kind=SpanKind.SERVER)
        try:
            with spans.within(span):
                try:
                    await self.app(scope, receive, note_status)
                finally:
                    _describe(span, scope, final_status(scope, status))
        except Exception:
            note(**spans.log_ids(span))  # for the server's log line, written after this span ends
            raise


def traceparent(headers: Headers) -> str | None:
    """Return the client's `traceparent` if it is the only one and well formed."""
    given = headers.getlist("traceparent")
    return spans.parse(given[0]) if len(given) == 1 else None


def _describe(span: Span, scope: Scope, status: int) -> None:
    """Describe a request's span by its route only, because clients' paths are private."""
    route = getattr(scope.get("route"), "path_format", None)
    method = scope["method"] if scope["method"] in METHODS else "_OTHER"
    span.update_name(f"{method} {route}" if route else method)
    span.set_attributes(
        {
            "http.request.method": method,
            "http.response.status_code": status,
            "url.scheme": scope.get("scheme", "http"),
            "network.protocol.version": scope.get("http_version", ""),
            **({"http.route": route} if route else {}),
        }
    )
    if status >= SERVER_ERROR:
        spans.fail(span, str(status))
