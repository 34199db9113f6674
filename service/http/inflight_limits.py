"""Limits on resources held concurrently, in total and per client."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from service.errors.problems import Busy, Unavailable
from service.http.connection_limits import max_connections
from service.http.upload_slots import ActiveUpload
from service.settings.limits import LimitSettings
from service.settings.server import ServerSettings

RETRY_AFTER_S = 2.0
SLICE_BYTES = 2**18
SMALL_BYTES = 2**14
"""Size up to which a body is sent at once, because every connection buffers as much."""


class SharedLimit:
    """Limited amount of a resource: `total` for all clients, `each` per client.

    A client that holds nothing may exceed `each` with one request. If the total is reached, slow
    uploads of other clients are evicted.
    """

    def __init__(
        self,
        what: str,
        code: str,
        total: int,
        each: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.uploads: dict[ActiveUpload, Hold] = {}
        """Bodies that are arriving."""
        self._what = what
        self._code = code
        self._total = total
        self._each = each
        self._held: Counter[str] = Counter()
        self.all = 0

    def holding(self, client: str, amount: int = 0) -> Hold:
        """Hold an amount for the duration of a `with` block.

        Raises: Busy, Unavailable: the limit is reached.
        """
        hold = self.hold(client)
        hold.add(amount)
        return hold

    def hold(self, client: str) -> Hold:
        """Create an empty hold of a client, which its owner closes."""
        return Hold(self, client)

    def acquire(self, client: str, amount: int, *, is_first: bool) -> None:
        """Charge an amount to a client, within the limits.

        Raises: Unavailable, Busy: the total, or this client's share, is exceeded.
        """
        if not amount:
            return
        is_over = not is_first and self._held[client] + amount > self._each
        is_full = self.all and self.all + amount > self._total
        if is_full and (is_over or not self._make_room(client, amount)):
            detail = f"all clients together hold too many {self._what}; try again"
            raise Unavailable(detail, code=self._code, retry_after_s=RETRY_AFTER_S)
        if is_over:
            detail = (
                f"your other requests hold too many {self._what}; try again when they have ended"
            )
            raise Busy(detail, code=self._code, retry_after_s=RETRY_AFTER_S)
        self._held[client] += amount
        self.all += amount

    def _make_room(self, client: str, amount: int) -> bool:
        """Evict slow uploads of other clients, the slowest first; return whether there is room."""
        now = self._clock()
        slow = [
            upload
            for upload in self.uploads
            if upload.client != client and upload.is_slow(now) and not upload.is_evicted
        ]
        for upload in sorted(slow, key=lambda upload: upload.rate(now)):
            self.uploads[upload].close()
            upload.evict()
            if not self.all or self.all + amount <= self._total:
                return True
        return False

    @contextmanager
    def receiving(self, hold: Hold) -> Iterator[None]:
        """Mark a hold as that of a body that arrives now. Raises: Unavailable: it was evicted."""
        upload = ActiveUpload(hold.client, asyncio.current_task(), self._clock())
        self.uploads[upload] = hold
        hold.upload = upload
        try:
            with upload.converting_eviction():
                yield
        finally:
            hold.upload = None
            del self.uploads[upload]

    def release(self, client: str, amount: int) -> None:
        """Release an amount that a client held."""
        self.all -= amount
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]

    def held_by(self, client: str) -> int:
        """Return the amount that a client holds."""
        return self._held[client]


@dataclass
class Hold:
    """Amount of a shared limit that one request holds, such as bytes in flight."""

    shared: SharedLimit
    client: str
    amount: int = 0
    upload: ActiveUpload | None = None
    """Body that is arriving, whose bytes are held."""

    def __enter__(self) -> Hold:
        """Enter the block that holds the amount."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Release the held amount at the end of the block."""
        self.close()

    def add(self, amount: int) -> None:
        """Add to the amount of the limited resource that this request holds.

        Raises: Busy, Unavailable.
        """
        is_first = self.shared.held_by(self.client) == self.amount
        self.shared.acquire(self.client, amount, is_first=is_first)
        self.amount += amount
        if self.upload:
            self.upload.arrived(amount)

    def receiving(self) -> AbstractContextManager[None]:
        """Let the request be evicted if its body arrives slowly. Raises: Unavailable."""
        return self.shared.receiving(self)

    def transfer(self) -> Hold:
        """Move the held amount to a new hold, which another owner closes."""
        other = Hold(self.shared, self.client, self.amount)
        self.amount = 0
        return other

    def __del__(self) -> None:  # if the response is never sent
        self.close()

    def close(self) -> None:
        """Release the whole amount of the resource that this request holds."""
        self.shared.release(self.client, self.amount)
        self.amount = 0


def slices(body: bytes) -> Iterator[bytes]:
    """Split a response body, so that a slice is sent once the client has the previous ones.

    The last slice is empty. When it has been sent, the client has received the rest.
    """
    view = memoryview(body)
    for start in range(0, len(body), SLICE_BYTES):
        yield bytes(view[start : start + SLICE_BYTES])
    yield b""


class HeldResponse(Response):
    """Response sent in slices, at the client's pace. Its bytes count as in flight until the end."""

    def __init__(self, content: bytes, hold: Hold, status_code: int = 200, **rest: Any) -> None:
        super().__init__(content, status_code, **rest)
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response in slices, then release its hold."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        body = bytes(self.body)
        for part in (body,) if len(body) <= SMALL_BYTES else slices(body):
            more = bool(part) and part is not body
            await send({"type": "http.response.body", "body": part, "more_body": more})
        self._hold.close()


def bodies_of(limits: LimitSettings) -> SharedLimit:
    """Create the limit of request bodies and outputs that are in memory at a time."""
    total = limits.max_inflight_bytes
    return SharedLimit("bytes in flight", "too_many_bytes", total, total // 2)


def waits_of(server: ServerSettings) -> SharedLimit:
    """Create the limit of requests that wait for a job; a quarter of all connections stays free."""
    connections = max_connections(server)
    each = server.max_waiting or max(1, connections // 4)
    return SharedLimit("waiting requests", "too_many_waiting", max(1, 3 * connections // 4), each)
