"""Parts of a form with size limits: stored in memory, or written to a file."""

from __future__ import annotations

import asyncio
import hashlib
from typing import BinaryIO, Protocol

from service.errors.handlers import log
from service.errors.problems import BodyTooLarge, FieldError, Malformed, Unavailable

WRITE_BYTES = 2**20
"""Bytes buffered before each write."""
RETRY_AFTER_S = 30.0


class Part(Protocol):
    """Interface of a form's part, which receives its data in pieces."""

    max_bytes: int
    what: str
    """Name of the part in error messages."""
    repeats: bool
    """Whether a form may contain the part several times."""
    filename: str
    """Name of the client's file, or of the last of several; empty if not given."""

    def begin(self) -> None:
        """Record that this part of the form begins."""

    def add(self, data: bytes) -> None:
        """Append received bytes to the form part. Raises: BodyTooLarge."""

    async def settle(self, *, ends: bool = False) -> None:
        """Write a form part's buffered data to its destination. Raises: Unavailable."""


class BoundedPart:
    """Base of the parts of a form: limits their size."""

    repeats = False
    filename = ""

    def __init__(self, max_bytes: int, what: str) -> None:
        self.max_bytes = max_bytes
        self.what = what
        self.is_present = False
        self.bytes = 0

    def begin(self) -> None:
        """Record that the form contains this part."""
        self.is_present = True

    def count(self, data: bytes) -> None:
        """Count received bytes against the part's limit. Raises: BodyTooLarge."""
        self.bytes += len(data)
        if self.bytes > self.max_bytes:
            raise BodyTooLarge(f"{self.what} may have {self.max_bytes} bytes")


class MemoryPart(BoundedPart):
    """Form part that is small enough for memory."""

    def __init__(self, max_bytes: int, what: str) -> None:
        super().__init__(max_bytes, what)
        self.data = bytearray()

    def add(self, data: bytes) -> None:
        """Append received bytes in memory. Raises: BodyTooLarge."""
        self.count(data)
        self.data += data

    async def settle(self, *, ends: bool = False) -> None:
        """Do nothing, because the data stays in memory."""

    def text(self) -> str:
        """Decode the form part as UTF-8. Raises: Malformed."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            message = f"byte {error.start} is not UTF-8"
            raise Malformed(
                f"{self.what}: {message}", errors=[FieldError(self.what, message)]
            ) from None


class FilePart(BoundedPart):
    """Large part, written to a file in a thread, with its digest."""

    def __init__(self, max_bytes: int, what: str, file: BinaryIO) -> None:
        super().__init__(max_bytes, what)
        self.file = file
        self._waiting = bytearray()
        self._sha256 = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of the uploaded file part, in hexadecimal."""
        return self._sha256.hexdigest()

    def add(self, data: bytes) -> None:
        """Buffer received bytes for the file. Raises: BodyTooLarge."""
        self.count(data)
        self._waiting += data

    async def settle(self, *, ends: bool = False) -> None:
        """Write the part's buffered data to its file if there is enough. Raises: Unavailable."""
        if len(self._waiting) < WRITE_BYTES and not ends:
            return
        waiting, self._waiting = self._waiting, bytearray()
        try:
            await asyncio.to_thread(self._write, waiting, ends)
        except OSError as error:
            log.error("an upload cannot be written: %s", error)
            detail = "the server has no space for the file now; try again"
            raise Unavailable(detail, code="no_room", retry_after_s=RETRY_AFTER_S) from error

    def _write(self, data: bytearray, ends: bool) -> None:
        """Append buffered bytes to the digest and the file. Raises: OSError."""
        self._sha256.update(data)
        self.file.write(data)
        if ends:
            self.file.flush()
