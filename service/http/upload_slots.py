"""Limits on concurrent uploads of large files, shared fairly between clients that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.errors.problems import Busy, Unavailable

SLOW_BYTES_PER_S = 2**20
"""Rate above which a client's only upload is never evicted."""
GRACE_S = 10.0
"""Initial time in which an upload is never evicted."""
RETRY_AFTER_S = 2.0


@dataclass(eq=False)
class ActiveUpload:
    """Active upload, from its first byte until its file is stored or rejected."""

    client: str
    task: asyncio.Task[object] | None
    began: float
    bytes: int = 0
    """Bytes received."""
    is_received: bool = False
    """Whether all bytes have arrived, so that it ends soon."""
    is_evicted: bool = field(default=False, init=False)
    """Whether it was evicted."""

    def arrived(self, count: int) -> None:
        """Count further received bytes of this upload."""
        self.bytes += count

    def rate(self, now: float) -> float:
        """Compute the upload's mean rate in bytes per second."""
        return self.bytes / max(now - self.began, 1e-9)

    def is_slow(self, now: float) -> bool:
        """Return whether it may be evicted because it is slow."""
        return now - self.began >= GRACE_S and self.rate(now) < SLOW_BYTES_PER_S

    def evict(self) -> None:
        """End the upload, whose client gets an error."""
        self.is_evicted = True
        if self.task:
            self.task.cancel()

    @contextmanager
    def converting_eviction(self) -> Iterator[None]:
        """Convert the cancellation of an eviction to its problem. Raises: Unavailable."""
        try:
            yield
        except asyncio.CancelledError:
            if self.is_evicted and self.task and not self.task.uncancel():
                raise _evicted() from None
            raise


class UploadSlots:
    """Slots for uploads: `total` for all clients, `each` per client.

    If all are in use, a new upload evicts the slowest one that is still arriving, if it is slow or
    if its client would still have as many as the new one's.
    """

    def __init__(self, total: int, each: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._each = each
        self._clock = clock
        self.uploads: list[ActiveUpload] = []
        """Active uploads, in order of arrival."""

    @contextmanager
    def slot(self, client: str) -> Iterator[ActiveUpload]:
        """Hold an upload slot, possibly evicting a slow upload.

        Raises:
            Busy: the client has reached its limit.
            Unavailable: all slots are in use by uploads that are not evicted; or this upload was
                evicted.
        """
        if self._count(client) >= self._each:
            detail = f"you may upload {self._each} files at the same time; wait until one is there"
            raise Busy(detail, code="too_many_uploads", retry_after_s=RETRY_AFTER_S)
        if len(self.uploads) >= self._total:
            self._evict_slowest(client)
        upload = ActiveUpload(client, asyncio.current_task(), self._clock())
        self.uploads.append(upload)
        try:
            with upload.converting_eviction():
                yield upload
        finally:
            if not upload.is_evicted:
                self.uploads.remove(upload)

    def _count(self, client: str) -> int:
        return sum(upload.client == client for upload in self.uploads)

    def _evict_slowest(self, client: str) -> None:
        """Evict the slowest upload that may end in favour of a client.

        Raises: Unavailable: none may.
        """
        now, fair_count = self._clock(), self._count(client) + 1
        evictable = [
            upload
            for upload in self.uploads
            if not upload.is_received
            and now - upload.began >= GRACE_S
            and (upload.rate(now) < SLOW_BYTES_PER_S or self._count(upload.client) > fair_count)
        ]
        if not evictable:
            detail = "all clients together upload too many files; try again"
            raise Unavailable(detail, code="too_many_uploads", retry_after_s=RETRY_AFTER_S)
        slowest = min(evictable, key=lambda upload: upload.rate(now))
        self.uploads.remove(slowest)
        slowest.evict()


def _evicted() -> Unavailable:
    return Unavailable(
        f"other uploads waited for this upload's slot, and it arrived at less than"
        f" {SLOW_BYTES_PER_S // 2**20} MiB/s or was not your only one; send it again",
        code="upload_too_slow",
        retry_after_s=GRACE_S,
    )
