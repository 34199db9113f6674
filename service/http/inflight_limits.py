"""Limits on bytes held at the same time, by all requests and by those of one client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from service.errors.problems import Busy, Unavailable
from service.http.connection_limits import max_connections
from service.settings.limits import LimitSettings
from service.settings.server import ServerSettings

RETRY_AFTER_S = 2.0
SLICE_BYTES = 2**18
SMALL_BYTES = 2**14
"""Size of a body that is sent at once, since every connection buffers as much."""


class Shared:
    """An amount of something, `total` of it for all and `each` for one client.

    One request of a client that holds nothing is never too large for its own share.
    """

    def __init__(self, what: str, code: str, total: int, each: int) -> None:
        self._what = what
        self._code = code
        self._total = total
        self._each = each
        self._held: Counter[str] = Counter()
        self.all = 0

    def holding(self, client: str, amount: int = 0) -> Hold:
        """Hold a part of what a client may have, for as long as a block lasts (`with`).

        Raises: Busy, Unavailable: there is not as much left.
        """
        hold = self.hold(client)
        hold.add(amount)
        return hold

    def hold(self, client: str) -> Hold:
        """Return an empty hold; its owner closes it."""
        return Hold(self, client)

    def take(self, client: str, amount: int, *, is_first: bool) -> None:
        """Take a part of what all clients share.

        Raises: Unavailable, Busy: all clients together, or this one, would hold too much.
        """
        if not amount:
            return
        if self.all and self.all + amount > self._total:
            said = f"all clients together hold too many {self._what}; try again"
            raise Unavailable(said, code=self._code, retry_after_s=RETRY_AFTER_S)
        if not is_first and self._held[client] + amount > self._each:
            said = f"your other requests hold too many {self._what}; try again when they have ended"
            raise Busy(said, code=self._code, retry_after_s=RETRY_AFTER_S)
        self._held[client] += amount
        self.all += amount

    def give(self, client: str, amount: int) -> None:
        """Give a part back."""
        self.all -= amount
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]

    def of(self, client: str) -> int:
        """Return what a client holds."""
        return self._held[client]


@dataclass
class Hold:
    """Bytes held by one request."""

    shared: Shared
    client: str
    amount: int = 0

    def __enter__(self) -> Hold:
        """Hold what there is until the block ends."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Give it back."""
        self.close()

    def add(self, amount: int) -> None:
        """Hold more.

        Raises: Busy, Unavailable.
        """
        is_first = self.shared.of(self.client) == self.amount
        self.shared.take(self.client, amount, is_first=is_first)
        self.amount += amount

    def pass_on(self) -> Hold:
        """Move what is held to a new hold, for somebody else to close."""
        other = Hold(self.shared, self.client, self.amount)
        self.amount = 0
        return other

    def __del__(self) -> None:  # of an answer that is never sent
        self.close()

    def close(self) -> None:
        """Give back what was held."""
        self.shared.give(self.client, self.amount)
        self.amount = 0


def slices(body: bytes) -> Iterator[bytes]:
    """The body in parts, of which each is sent when the client has taken the ones before.

    The last one is empty: whoever has sent it knows that the client has what it was to have.
    """
    view = memoryview(body)
    for start in range(0, len(body), SLICE_BYTES):
        yield bytes(view[start : start + SLICE_BYTES])
    yield b""


class HeldResponse(Response):
    """Bytes in slices, each sent when the client has taken the ones before; held until the end."""

    def __init__(self, content: bytes, hold: Hold, status_code: int = 200, **rest: Any) -> None:
        super().__init__(content, status_code, **rest)
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response in parts; what was held for it is given back at its end."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        body = bytes(self.body)
        for part in (body,) if len(body) <= SMALL_BYTES else slices(body):
            more = bool(part) and part is not body
            await send({"type": "http.response.body", "body": part, "more_body": more})
        self._hold.close()


def bodies_of(limits: LimitSettings) -> Shared:
    """Bytes of bodies and outputs."""
    total = limits.max_inflight_bytes
    return Shared("bytes in flight", "too_many_bytes", total, total // 2)


def waits_of(server: ServerSettings) -> Shared:
    """Requests that last as long as a job; a quarter of all connections stays free of them."""
    connections = max_connections(server)
    each = server.max_waiting or max(1, connections // 4)
    return Shared("waiting requests", "too_many_waiting", max(1, 3 * connections // 4), each)
