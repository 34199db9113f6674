"""Bounds on what a client's connection may send and hold, enforced before a request is parsed.

httptools reads requests three times as fast as h11 (with these bounds more than twice) but accepts
headers of any size, and uvicorn waits for slow clients without end. `BoundedProtocol` adds both
bounds to uvicorn's own protocol.
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
"""Maximum size of a chunked body beside its data: sizes, extensions, trailers."""
MAX_PIPELINED = 8
"""Requests that wait on one connection for the answer of an earlier one."""

LINGER_S = 1.0
"""Time for reading and dropping a refused client's further bytes, so that it sees the answer."""
DRAIN_S = 5.0
"""Time for a client to go on sending a body that was answered already."""
LOG_EVERY_S = 10.0
RETRY_AFTER_S = 2.0

MAX_CONNECTIONS = 4096
"""Unless the settings or the descriptor limit say otherwise."""
MAX_DESCRIPTORS = 65_536
"""Number of descriptors that the process asks for if its hard limit allows them."""
CONNECTION_SHARE = 0.75
"""Share of descriptors for connections; Redis, the store and webhooks need the others."""


REASONS = (
    "silent", "idle", "evicted", "full", "head_overdue", "body_overdue", "answer_unread",
    "not_http", "headers_too_large", "target_too_long", "framing_too_large", "pipelined",
    "foreign_target", "unwanted_body",
)  # fmt: skip
"""Reasons for closing a connection, as metrics and the log name them."""


class Phase(Enum):
    """Phase of a connection: whose turn it is, and for what."""

    IDLE = auto()
    """Idle between two requests."""
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    DRAIN = auto()
    """The answer is complete, the body is not."""


SILENCE = {Phase.HEAD: "silent", Phase.IDLE: "idle", Phase.DRAIN: "unwanted_body"}
AFTER_ANSWER = {Phase.ANSWER: Phase.IDLE, Phase.BODY: Phase.DRAIN}


@dataclass(frozen=True)
class ConnectionLimits:
    """Seconds, bytes and connections that clients get."""

    header_s: float
    body_s: float
    idle_s: float
    min_rate: float
    """Bytes a second, of bodies and of answers."""
    connections: int
    drain_bytes: int
    """Maximum number of body bytes read after its answer."""

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """Return the limits that the settings have."""
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
    """Number of connections that fit into the settings and the process's descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = MAX_DESCRIPTORS
    return max(1, min(server.max_connections, int(CONNECTION_SHARE * descriptors)))


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors towards the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass
class Connections:
    """Open connections of one server."""

    limits: ConnectionLimits
    closed: Metric
    open: set[BoundedProtocol] = field(default_factory=set)
    _unlogged: Counter[str] = field(default_factory=Counter)
    _logged_at: float = -LOG_EVERY_S

    def __post_init__(self) -> None:
        for reason in REASONS:
            self.closed.labels(reason)

    def add(self, connection: BoundedProtocol) -> bool:
        """Make room for a new connection; False if there is none."""
        if len(self.open) >= self.limits.connections and not self._evict():
            self.count("full")
            return False
        self.open.add(connection)
        return True

    def _evict(self) -> bool:
        """Close the connection that has kept us waiting for the longest time."""
        waiting = [one for one in self.open if one.phase is not Phase.ANSWER]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda one: one.since)
        self.open.discard(oldest)
        oldest.drop("evicted")
        return True

    def count(self, reason: str) -> None:
        """Count a connection that was closed for this reason."""
        self._unlogged[reason] += 1
        self.closed.labels(reason).inc()

    def sweep(self, now: float, tick_s: float) -> None:
        """Close connections that are overdue, and log which bounds were reached."""
        for connection in tuple(self.open):
            connection.check(now, tick_s)
        if self._unlogged and now - self._logged_at >= LOG_EVERY_S:
            said = ", ".join(f"{reason}: {n}" for reason, n in sorted(self._unlogged.items()))
            log.warning("connections were closed (%s); %d are open", said, len(self.open))
            self._unlogged.clear()
            self._logged_at = now


class Refused(Exception):
    """A request that breaks a bound while it is parsed."""

    def __init__(self, reason: str, problem: Problem) -> None:
        super().__init__(reason)
        self.reason = reason
        self.problem = problem


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol over httptools, with bounds on bytes and time.

    Args:
        shared: what all connections of the server have in common.
    """

    def __init__(self, *args: Any, shared: Connections, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._shared = shared
        self._limits = shared.limits
        self.phase = Phase.HEAD
        self.since = self.loop.time()
        """Start of the phase."""
        self._deadline = self.since + self._limits.header_s
        """Deadline of the phase; moved on while we do not read."""
        self._is_refused = False
        self._messages = 0
        self._has_begun = False
        """Whether any byte of the current request has arrived."""
        self._head_bytes = 0
        """Received of a head that is not complete."""
        self._headers_bytes = 0
        """Size of its complete headers."""
        self._body_bytes = 0
        """Received since the headers' end, framing included."""
        self._data_bytes = 0
        self._drain_to = 0
        """Bytes of the body up to which a client may go on after its answer."""
        self._trailers = 0
        self._plain_head: bytes | None = None
        """Head to parse in place of a request that asks for an upgrade."""
        self._unanswered: deque[RequestResponseCycle] = deque()
        """Requests without a complete answer, oldest first; `cycle` is the newest."""
        self._unsent: tuple[float, int] | None = None
        """Last time that bytes of answers were seen waiting for the client, and how many."""

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it where there are too many."""
        super().connection_made(transport)
        if not self._shared.add(self):
            said = "this server has too many connections; try again"
            self._is_refused = True
            transport.write(raw_answer(Unavailable(said, retry_after_s=RETRY_AFTER_S)))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._shared.open.discard(self)
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read bytes, within the limits of head and body."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        self._has_begun = True
        try:
            self._feed(data)
        except httptools.HttpParserUpgrade:  # of CONNECT
            self.cycle.keep_alive = False  # what follows would be another protocol's
        except httptools.HttpParserError as error:
            self._refuse_for(error)

    def _feed(self, data: bytes) -> None:
        """Parse the headers' bytes up to their bound only, and then the others."""
        if self.phase is Phase.HEAD:
            data = self._feed_head(data)
        if data:
            self._body_bytes += len(data)
            if self.phase is Phase.BODY:
                self._extend(len(data))
            self._parse(data)
            self._check_body()

    def _feed_head(self, data: bytes) -> bytes:
        """Parse a part of the head; return the bytes behind it. Raises: Refused."""
        part = data[: MAX_HEAD_BYTES - self._head_bytes]
        messages = self._messages
        self._parse(part)
        if self.phase is Phase.HEAD and messages == self._messages:
            self._head_bytes += len(part)
            if self._head_bytes >= MAX_HEAD_BYTES:
                self._refuse_because(self._head_too_large())
        return b"" if self._is_refused else data[len(part) :]

    def _parse(self, data: bytes) -> None:
        """Parse, as plain HTTP/1.1 also what asks for an upgrade, such as `curl --http2`.

        httptools takes what follows such a head for another protocol, though it is the body: the
        head is parsed again without that wish. The connection ends with the answer.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._plain_head is None:
                raise
            head, self._plain_head = self._plain_head, None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
            self.parser.feed_data(head)
            self.cycle.keep_alive = False
            self._parse(data[upgrade.args[0] :])

    def _check_body(self) -> None:
        if self.phase is Phase.DRAIN and self._body_bytes > self._drain_to:
            self.drop("unwanted_body")
        if self.phase is Phase.BODY and self._body_bytes - self._data_bytes > MAX_FRAMING_BYTES:
            problem = Malformed("the chunks of the body are too small, or their trailers too long")
            self._refuse_because(Refused("framing_too_large", problem))

    # Parser callbacks

    def on_message_begin(self) -> None:
        """Begin the phase of reading a head."""
        super().on_message_begin()
        self._messages += 1
        self._head_bytes = self._headers_bytes = self._trailers = 0
        self._enter(Phase.HEAD)

    def on_url(self, url: bytes) -> None:
        """Read a part of the target, up to its limit."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            said = f"the request's target may have {MAX_TARGET_BYTES} bytes"
            raise Refused("target_too_long", TargetTooLong(said))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a header, or a trailer, up to their limits."""
        if self.phase is Phase.BODY:  # a trailer, which no route may take for a header
            self._trailers += 1
        else:
            super().on_header(name, value)
        self._headers_bytes += len(name) + len(value)
        is_large = self._headers_bytes > MAX_HEAD_BYTES
        if is_large or max(len(self.headers), self._trailers) > MAX_HEADERS:
            raise self._head_too_large()

    def on_headers_complete(self) -> None:
        """Hand the request on, once its head is whole."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._plain_head = self._without_upgrade()
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused("pipelined", Malformed("wait for the answers"))
        if not _is_ours(self.url, self.headers):
            raise Refused("foreign_target", Malformed("the request's target names another host"))
        if self.parser.get_http_version() == "1.0" and _is_coded(self.headers):
            raise Refused("not_http", Malformed("HTTP/1.0 has no Transfer-Encoding"))
        self._body_bytes = self._data_bytes = 0
        self._enter(Phase.BODY)
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def _without_upgrade(self) -> bytes:
        """The head as it came, but for `Upgrade`."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        headers = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([b"%s %s HTTP/%s" % (method, self.url, version), *headers, b"", b""])

    def on_body(self, body: bytes) -> None:
        """Count and read a part of the body."""
        self._data_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Begin the phase of answering."""
        if self._plain_head is not None:
            return
        super().on_message_complete()
        self._enter(Phase.IDLE if self.cycle.response_complete else Phase.ANSWER)

    def on_response_complete(self) -> None:
        """Drain what is left of the body, up to its limit."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self.cycle.response_complete and self.phase in AFTER_ANSWER:
            self._drain_to = self._body_bytes + self._limits.drain_bytes
            self._enter(AFTER_ANSWER[self.phase])

    def resume_writing(self) -> None:
        """Go on sending: the client has read."""
        self._unsent = None
        super().resume_writing()

    # Time

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self.loop.time()
        self._deadline = self.since + self._allowed_s()

    def check(self, now: float, tick_s: float) -> None:
        """Close the connection if its client is overdue; called every `tick_s`."""
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
                return self._limits.idle_s + 1  # uvicorn's own timer comes first
        return math.inf

    def _extend(self, received: int) -> None:
        """Put off the deadline of a body by what its bytes may take, up to the whole patience."""
        latest = self.loop.time() + self._limits.body_s
        self._deadline = min(latest, self._deadline + received / self._limits.min_rate)

    def _give_up(self) -> None:
        if self._has_begun and self.phase in (Phase.HEAD, Phase.BODY):
            problem = RequestTimeout("the request came too slowly")
            return self._refuse_because(Refused(f"{self.phase.name.lower()}_overdue", problem))
        self.drop(SILENCE[self.phase])

    def _reads(self, now: float) -> bool:
        """Return whether the client reads its answer fast enough."""
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

    def _head_too_large(self) -> Refused:
        said = f"a request may have {MAX_HEADERS} headers, {MAX_HEAD_BYTES} bytes together"
        return Refused("headers_too_large", HeadersTooLarge(said))

    def _refuse_for(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if not isinstance(cause, Refused):
            cause = Refused("not_http", Malformed("this is no HTTP/1.1 request"))
        self._refuse_because(cause)

    def _refuse_because(self, refused: Refused) -> None:
        self._shared.count(refused.reason)
        self._refuse(refused.problem)

    def _refuse(self, problem: Problem) -> None:
        """Answer, unless an answer is on its way, and close."""
        is_answering = any(cycle.response_started for cycle in self._unanswered)
        if self.transport.is_closing() or is_answering:
            return self.transport.abort()
        self._let_go()
        self.transport.write(raw_answer(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def drop(self, reason: str) -> None:
        """Close without an answer."""
        self._shared.count(reason)
        self._let_go()
        self.transport.abort()

    def _let_go(self) -> None:
        """Tell the app that its client has left."""
        self._is_refused = True
        self._disconnect()
        self.flow.resume_reading()
        self.flow.resume_writing()

    def _disconnect(self) -> None:
        """Tell every request of the connection, and drop those that have not begun."""
        self.pipeline.clear()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()


def _is_ours(target: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the target is a path, or an address on the host that the headers name."""
    if target.startswith(b"/") or target == b"*":
        return True
    authority = target.partition(b"://")[2].partition(b"/")[0]
    return authority != b"" and (b"host", authority) in headers


def _is_coded(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether there is a Transfer-Encoding, which an old proxy would not have read."""
    return any(name == b"transfer-encoding" for name, _ in headers)
