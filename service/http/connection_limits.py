"""Limits of time and size per client connection, enforced before a request is parsed.

httptools parses requests three times as fast as h11 (with these limits more than twice). But it
accepts headers of any size, and uvicorn waits for slow clients without a timeout. `BoundedProtocol`
adds both limits to uvicorn's protocol.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import httptools
from prometheus_client import Counter as Metric
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.errors.problems import (
    HeadersTooLarge,
    Malformed,
    Problem,
    RequestTimeout,
    TargetTooLong,
    Unavailable,
    raw_answer,
)
from service.settings.server import ServerSettings
from service.settings.settings import Settings

log = logging.getLogger("atelier")

MAX_TARGET_BYTES = 8 * 2**10
"""Maximum size of a request's path and query."""
MAX_HEAD_BYTES = 32 * 2**10
"""Maximum size of a request line with its headers, and of the trailers of a chunked body."""
MAX_HEADERS = 100
MAX_FRAMING_BYTES = 2**20
"""Maximum size of a chunked body in addition to its data: sizes, extensions, trailers."""
MAX_PIPELINED = 8
"""Maximum number of pipelined requests that wait on one connection."""

LINGER_S = 1.0
"""Time for reading and discarding a rejected client's further bytes, so that it receives the
response."""
DRAIN_S = 5.0
"""Time for a client to finish sending a body after its response."""
LOG_EVERY_S = 10.0
RETRY_AFTER_S = 2.0

MAX_CONNECTIONS = 4096
"""Default, if neither settings nor the descriptor limit are lower."""
MAX_DESCRIPTORS = 65_536
"""Number of descriptors that the process requests if its hard limit allows them."""
CONNECTION_SHARE = 0.75
"""Share of descriptors for connections. Redis, the store and webhooks need the rest."""


REASONS = (
    "silent", "idle", "evicted", "full", "head_overdue", "body_overdue", "answer_unread",
    "not_http", "headers_too_large", "target_too_long", "framing_too_large", "pipelined",
    "foreign_target", "unwanted_body",
)  # fmt: skip
"""Reasons for closing a connection, as metrics and the log name them."""


class Phase(Enum):
    """State of a connection: which message is in progress."""

    IDLE = auto()
    """Idle between two requests."""
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    DRAIN = auto()
    """The response is complete, the body is not."""


SILENCE = {Phase.HEAD: "silent", Phase.IDLE: "idle", Phase.DRAIN: "unwanted_body"}
AFTER_ANSWER = {Phase.ANSWER: Phase.IDLE, Phase.BODY: Phase.DRAIN}


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of time, bytes and connections for clients."""

    header_s: float
    body_s: float
    idle_s: float
    min_rate: float
    """Bytes per second, of bodies and of responses."""
    connections: int
    drain_bytes: int
    """Maximum number of body bytes read after the response."""

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """Derive the connection limits from the settings."""
        server = settings.server
        return cls(
            drain_bytes=settings.limits.max_body_bytes,
            header_s=server.header_s,
            body_s=server.body_s,
            idle_s=server.idle_s,
            min_rate=server.min_bytes_per_s,
            connections=max_connections(server),
        )


def max_connections(server: ServerSettings) -> int:
    """Compute the number of connections that settings and the process's descriptors allow."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = MAX_DESCRIPTORS
    return max(1, min(server.max_connections, int(CONNECTION_SHARE * descriptors)))


def raise_descriptor_limit() -> None:
    """Raise the process's soft limit of file descriptors towards the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


@dataclass
class Connections:
    """Open connections of one server, with metrics of those that were closed."""

    limits: ConnectionLimits
    closed: Metric
    open: set[BoundedProtocol] = field(default_factory=set)
    _unlogged: Counter[str] = field(default_factory=Counter)
    _logged_at: float = -LOG_EVERY_S

    def __post_init__(self) -> None:
        for reason in REASONS:
            self.closed.labels(reason)

    def add(self, connection: BoundedProtocol) -> bool:
        """Register a new connection, evicting another if necessary; False if all are busy."""
        if len(self.open) >= self.limits.connections and not self._evict():
            self.count("full")
            return False
        self.open.add(connection)
        return True

    def _evict(self) -> bool:
        """Close the connection whose client has stalled longest."""
        waiting = [connection for connection in self.open if connection.phase is not Phase.ANSWER]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda connection: connection.since)
        self.open.discard(oldest)
        oldest.drop("evicted")
        return True

    def count(self, reason: str) -> None:
        """Count a connection that was closed for this reason, in the metrics."""
        self._unlogged[reason] += 1
        self.closed.labels(reason).inc()

    def sweep(self, now: float, tick_s: float) -> None:
        """Close overdue connections, and log which limits they exceeded."""
        for connection in tuple(self.open):
            connection.check(now, tick_s)
        if self._unlogged and now - self._logged_at >= LOG_EVERY_S:
            counts = ", ".join(f"{reason}: {n}" for reason, n in sorted(self._unlogged.items()))
            log.warning("connections were closed (%s); %d are open", counts, len(self.open))
            self._unlogged.clear()
            self._logged_at = now


class RequestRejected(Exception):
    """Request that exceeds a limit while it is parsed."""

    def __init__(self, reason: str, problem: Problem) -> None:
        super().__init__(reason)
        self.reason = reason
        self.problem = problem


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol, with limits of size and time.

    Args:
        shared: state shared by all connections of the server.
    """

    def __init__(self, *args: Any, shared: Connections, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._shared = shared
        self._limits = shared.limits
        self.phase = Phase.HEAD
        self.since = self.loop.time()
        """Start time of the phase."""
        self._deadline = self.since + self._limits.header_s
        """Deadline of the phase, extended while reading is paused."""
        self._is_refused = False
        self._messages = 0
        self._has_begun = False
        """Whether any byte of the current request has arrived."""
        self._head_bytes = 0
        """Bytes received of an incomplete head."""
        self._headers_bytes = 0
        """Size of its complete headers."""
        self._body_bytes = 0
        """Bytes received since the end of the headers, including framing."""
        self._data_bytes = 0
        self._drain_to = 0
        """Maximum bytes of the body that a client may send after its response."""
        self._trailers = 0
        self._plain_head: bytes | None = None
        """Head to parse instead of a request with an upgrade."""
        self._unanswered: deque[RequestResponseCycle] = deque()
        """Requests without a complete response, oldest first. `cycle` is the newest."""
        self._unsent: tuple[float, int] | None = None
        """Last time at which response bytes were waiting for the client, and their number."""

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection, or reject it if there are too many."""
        super().connection_made(transport)
        if not self._shared.add(self):
            detail = "this server has too many connections; try again"
            self._is_refused = True
            transport.write(raw_answer(Unavailable(detail, retry_after_s=RETRY_AFTER_S)))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the closed connection."""
        self._shared.open.discard(self)
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, within the limits of head and body."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        self._has_begun = True
        try:
            self._feed(data)
        except httptools.HttpParserUpgrade:  # raised for CONNECT
            self.cycle.keep_alive = False  # the following bytes belong to another protocol
        except httptools.HttpParserError as error:
            self._refuse_for(error)

    def _feed(self, data: bytes) -> None:
        """Parse a head up to its size limit, then the body."""
        if self.phase is Phase.HEAD:
            data = self._feed_head(data)
        if data:
            self._body_bytes += len(data)
            if self.phase is Phase.BODY:
                self._extend(len(data))
            self._parse(data)
            self._check_body()

    def _feed_head(self, data: bytes) -> bytes:
        """Parse a part of the head and return the bytes after it. Raises: RequestRejected."""
        part = data[: MAX_HEAD_BYTES - self._head_bytes]
        messages = self._messages
        self._parse(part)
        if self.phase is Phase.HEAD and messages == self._messages:
            self._head_bytes += len(part)
            if self._head_bytes >= MAX_HEAD_BYTES:
                self._reject(self._head_too_large())
        return b"" if self._is_refused else data[len(part) :]

    def _parse(self, data: bytes) -> None:
        """Parse bytes, treating a request for an upgrade (`curl --http2`) as plain HTTP/1.1.

        httptools assumes that the bytes after the head belong to another protocol, but they are the
        body. The head is parsed again without the upgrade. The connection closes after the
        response.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._plain_head is None:
                raise
            head, self._plain_head = self._plain_head, None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.parser.feed_data(head)
            self.cycle.keep_alive = False
            self._parse(data[upgrade.args[0] :])

    def _check_body(self) -> None:
        if self.phase is Phase.DRAIN and self._body_bytes > self._drain_to:
            self.drop("unwanted_body")
        if self.phase is Phase.BODY and self._body_bytes - self._data_bytes > MAX_FRAMING_BYTES:
            problem = Malformed("the chunks of the body are too small, or their trailers too long")
            self._reject(RequestRejected("framing_too_large", problem))

    # Parser callbacks

    def on_message_begin(self) -> None:
        """Start the phase that reads a request's head."""
        super().on_message_begin()
        self._messages += 1
        self._head_bytes = self._headers_bytes = self._trailers = 0
        self._enter(Phase.HEAD)

    def on_url(self, url: bytes) -> None:
        """Read a part of the request's target, within its limit."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            detail = f"the request's target may have {MAX_TARGET_BYTES} bytes"
            raise RequestRejected("target_too_long", TargetTooLong(detail))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a header or trailer, within their limits."""
        if self.phase is Phase.BODY:  # a trailer, which routes must not read as a header
            self._trailers += 1
        else:
            super().on_header(name, value)
        self._headers_bytes += len(name) + len(value)
        is_large = self._headers_bytes > MAX_HEAD_BYTES
        if is_large or max(len(self.headers), self._trailers) > MAX_HEADERS:
            raise self._head_too_large()

    def on_headers_complete(self) -> None:
        """Start the request, once its head is complete."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._plain_head = self._without_upgrade()
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise RequestRejected("pipelined", Malformed("wait for the responses"))
        if not _is_ours(self.url, self.headers):
            raise RequestRejected(
                "foreign_target", Malformed("the request's target names another host")
            )
        if self.parser.get_http_version() == "1.0" and _is_coded(self.headers):
            raise RequestRejected("not_http", Malformed("HTTP/1.0 has no Transfer-Encoding"))
        self._body_bytes = self._data_bytes = 0
        self._enter(Phase.BODY)
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def _without_upgrade(self) -> bytes:
        """Serialize the request's head without its `Upgrade` header."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        headers = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([b"%s %s HTTP/%s" % (method, self.url, version), *headers, b"", b""])

    def on_body(self, body: bytes) -> None:
        """Count and read a part of the request's body."""
        self._data_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Start the response phase, once the request's body is complete."""
        if self._plain_head is not None:
            return
        super().on_message_complete()
        self._enter(Phase.IDLE if self.cycle.response_complete else Phase.ANSWER)

    def on_response_complete(self) -> None:
        """Discard the rest of the request's body after the response, within its limit."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self.cycle.response_complete and self.phase in AFTER_ANSWER:
            self._drain_to = self._body_bytes + self._limits.drain_bytes
            self._enter(AFTER_ANSWER[self.phase])

    def resume_writing(self) -> None:
        """Resume sending after the client has read."""
        self._unsent = None
        super().resume_writing()

    # Time

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self.loop.time()
        self._deadline = self.since + self._allowed_s()

    def check(self, now: float, tick_s: float) -> None:
        """Close the connection if its client is overdue. Called every `tick_s`."""
        if self.flow.read_paused:
            self._deadline += tick_s
        if now > self._deadline:
            self._give_up()
        elif not self._reads(now):
            self.drop("answer_unread")

    def _allowed_s(self) -> float:
        match self.phase:
            case Phase.HEAD:
                return self._limits.header_s
            case Phase.BODY:
                return self._limits.body_s
            case Phase.DRAIN:
                return DRAIN_S
            case Phase.IDLE:
                return self._limits.idle_s + 1  # uvicorn's own timer fires first
        return math.inf

    def _extend(self, received: int) -> None:
        """Extend a body's deadline by the time for its bytes, at most `body_s` from now."""
        latest = self.loop.time() + self._limits.body_s
        self._deadline = min(latest, self._deadline + received / self._limits.min_rate)

    def _give_up(self) -> None:
        if self._has_begun and self.phase in (Phase.HEAD, Phase.BODY):
            problem = RequestTimeout("the request arrived too slowly")
            return self._reject(RequestRejected(f"{self.phase.name.lower()}_overdue", problem))
        self.drop(SILENCE[self.phase])

    def _reads(self, now: float) -> bool:
        """Return whether the client reads its response fast enough."""
        if not (self.flow.write_paused or self.transport.is_closing()):
            self._unsent = None
            return True
        unsent = self.transport.get_write_buffer_size()
        began, before = self._unsent or (now, unsent)
        self._unsent = began, before
        if now - began < self._limits.body_s:
            return True
        self._unsent = now, unsent
        return before - unsent >= self._limits.min_rate * self._limits.body_s

    # Refusals

    def _head_too_large(self) -> RequestRejected:
        detail = f"a request may have {MAX_HEADERS} headers, {MAX_HEAD_BYTES} bytes together"
        return RequestRejected("headers_too_large", HeadersTooLarge(detail))

    def _refuse_for(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if not isinstance(cause, RequestRejected):
            cause = RequestRejected("not_http", Malformed("this is not an HTTP/1.1 request"))
        self._reject(cause)

    def _reject(self, refused: RequestRejected) -> None:
        self._shared.count(refused.reason)
        self._refuse(refused.problem)

    def _refuse(self, problem: Problem) -> None:
        """Send an error response, unless a response has started, and close the connection."""
        is_answering = any(cycle.response_started for cycle in self._unanswered)
        if self.transport.is_closing() or is_answering:
            return self.transport.abort()
        self._release()
        self.transport.write(raw_answer(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def drop(self, reason: str) -> None:
        """Close the connection without a response."""
        self._shared.count(reason)
        self._release()
        self.transport.abort()

    def _release(self) -> None:
        """Notify the app that the client of the current request has disconnected."""
        self._is_refused = True
        self._disconnect()
        self.flow.resume_reading()
        self.flow.resume_writing()

    def _disconnect(self) -> None:
        """Notify every request of the connection, and drop requests that have not started."""
        self.pipeline.clear()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()


def _is_ours(target: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the request target is a path, or a URL with the host of the Host header."""
    if target.startswith(b"/") or target == b"*":
        return True
    authority = target.partition(b"://")[2].partition(b"/")[0]
    return authority != b"" and (b"host", authority) in headers


def _is_coded(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the request has a Transfer-Encoding, which HTTP/1.0 proxies ignore."""
    return any(name == b"transfer-encoding" for name, _ in headers)
