"""Parts of a form, each bounded: kept in memory, or written to a file."""

from __future__ import annotations

import asyncio
import hashlib
from typing import BinaryIO, Protocol

from service.errors.problems import BodyTooLarge, FieldError, Malformed, Unavailable

WRITE_BYTES = 2**20
"""Bytes that wait until they are written together."""
RETRY_AFTER_S = 30.0


class Part(Protocol):
    """Part of a form."""

    max_bytes: int
    what: str
    """Name of the part in refusals."""
    repeats: bool
    """True for a part that a form may have several times."""
    filename: str
    """Name of the file that the client sent, or the last of several; empty: it named none."""

    def begin(self) -> None:
        """Begin the part, which the form has."""

    def add(self, data: bytes) -> None:
        """Take a piece. Raises: BodyTooLarge."""

    async def settle(self, *, ends: bool = False) -> None:
        """Bring what has come where it belongs. Raises: Unavailable."""


class BoundedPart:
    """Base of the parts: counts their bytes."""

    repeats = False
    filename = ""

    def __init__(self, max_bytes: int, what: str) -> None:
        self.max_bytes = max_bytes
        self.what = what
        self.is_there = False
        self.bytes = 0

    def begin(self) -> None:
        """Note that the form has this part."""
        self.is_there = True

    def count(self, data: bytes) -> None:
        """Count a piece. Raises: BodyTooLarge."""
        self.bytes += len(data)
        if self.bytes > self.max_bytes:
            raise BodyTooLarge(f"{self.what} may have {self.max_bytes} bytes")


class MemoryPart(BoundedPart):
    """Small part, kept in memory."""

    def __init__(self, max_bytes: int, what: str) -> None:
        super().__init__(max_bytes, what)
        self.data = bytearray()

    def add(self, data: bytes) -> None:
        """Take a piece. Raises: BodyTooLarge."""
        self.count(data)
        self.data += data

    async def settle(self, *, ends: bool = False) -> None:
        """Leave everything where it is."""

    def text(self) -> str:
        """Return the part as a text. Raises: Malformed."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            message = f"byte {error.start} is no UTF-8"
            raise Malformed(
                f"{self.what}: {message}", errors=[FieldError(self.what, message)]
            ) from None


class FilePart(BoundedPart):
    """Large part, written to a file beside the event loop, with its digest."""

    def __init__(self, max_bytes: int, what: str, file: BinaryIO) -> None:
        super().__init__(max_bytes, what)
        self.file = file
        self._waiting = bytearray()
        self._sha256 = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of the part, in hexadecimal."""
        return self._sha256.hexdigest()

    def add(self, data: bytes) -> None:
        """Take a piece. Raises: BodyTooLarge."""
        self.count(data)
        self._waiting += data

    async def settle(self, *, ends: bool = False) -> None:
        """Write what waits, once it is worth a thread. Raises: Unavailable: the disk is full."""
        if len(self._waiting) < WRITE_BYTES and not ends:
            return
        waiting, self._waiting = self._waiting, bytearray()
        try:
            await asyncio.to_thread(self._write, waiting, ends)
        except OSError as error:
            said = f"the server has no room for the file now ({error.strerror}); try again"
            raise Unavailable(said, code="no_room", retry_after_s=RETRY_AFTER_S) from error

    def _write(self, data: bytearray, ends: bool) -> None:
        """Raises: OSError."""
        self._sha256.update(data)
        self.file.write(data)
        if ends:
            self.file.flush()
