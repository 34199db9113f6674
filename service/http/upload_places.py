"""Places for uploads of large files, which slow ones lose while others wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.errors.problems import Busy, Unavailable

SLOW_BYTES_PER_S = 2**20
"""Rate from which an upload is never ended for another one."""
GRACE_S = 10.0
"""Time in which no upload is judged."""
RETRY_AFTER_S = 2.0


@dataclass(eq=False)
class UploadPlace:
    """One upload, from its first byte until its file is stored or refused."""

    client: str
    task: asyncio.Task[object] | None
    began: float
    bytes: int = 0
    """Bytes that have arrived."""
    is_received: bool = False
    """True once all of it is there: it ends soon."""
    is_ended: bool = field(default=False, init=False)
    """True if its place was given to another one."""

    def arrived(self, count: int) -> None:
        """Note that so many further bytes are there."""
        self.bytes += count

    def rate(self, now: float) -> float:
        """Return the bytes a second until now."""
        return self.bytes / max(now - self.began, 1e-9)


class UploadPlaces:
    """Places for uploads: `total` in all, `each` for one client.

    Where all are taken, a new upload ends the slowest one that is still arriving, if that is slow.
    """

    def __init__(self, total: int, each: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._each = each
        self._clock = clock
        self.uploads: list[UploadPlace] = []
        """Those that have a place, in the order in which they came."""

    @contextmanager
    def place(self, client: str) -> Iterator[UploadPlace]:
        """Hold a place.

        Raises:
            Busy: the client has as many as one may have.
            Unavailable: all are taken by uploads that go on; or this one was too slow.
        """
        if sum(upload.client == client for upload in self.uploads) >= self._each:
            detail = f"you may upload {self._each} files at the same time; wait until one is there"
            raise Busy(detail, code="too_many_uploads", retry_after_s=RETRY_AFTER_S)
        if len(self.uploads) >= self._total:
            self._end_slowest()
        upload = UploadPlace(client, asyncio.current_task(), self._clock())
        self.uploads.append(upload)
        try:
            yield upload
        except asyncio.CancelledError:
            if upload.is_ended and upload.task and not upload.task.uncancel():
                raise _too_slow() from None
            raise
        finally:
            if not upload.is_ended:
                self.uploads.remove(upload)

    def _end_slowest(self) -> None:
        """Raises: Unavailable: none is slow."""
        now = self._clock()
        slow = [
            upload
            for upload in self.uploads
            if not upload.is_received
            and now - upload.began >= GRACE_S
            and upload.rate(now) < SLOW_BYTES_PER_S
        ]
        if not slow:
            detail = "all clients together upload too many files; try again"
            raise Unavailable(detail, code="too_many_uploads", retry_after_s=RETRY_AFTER_S)
        slowest = min(slow, key=lambda upload: upload.rate(now))
        slowest.is_ended = True
        self.uploads.remove(slowest)
        if slowest.task:
            slowest.task.cancel()


def _too_slow() -> Unavailable:
    return Unavailable(
        f"the file arrived at less than {SLOW_BYTES_PER_S // 2**20} MiB/s while others waited for"
        " its place; send it again",
        code="upload_too_slow",
        retry_after_s=GRACE_S,
    )
