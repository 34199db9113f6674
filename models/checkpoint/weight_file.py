"""Common interface of weight files on disk and in an object store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from models.checkpoint.direct_io import DiskFile, Memory, Take
from models.checkpoint.folder import unreadable
from models.checkpoint.object_file import ObjectFile, reference_of


class WeightFile(Protocol):
    """Open weight file; safe to read from several threads."""

    readers: int
    """Recommended number of concurrent reading threads."""
    size: int
    """Bytes."""

    def close(self) -> None:
        """Release the weight file's descriptors and connections."""

    def read(self, start: int, stop: int, take: Take) -> Memory:
        """Read the bytes from `start` to `stop` into a buffer that `take` allocates.

        Raises: OSError, and the errors of the file's source.
        """
        ...

    def parts(self, start: int, stop: int, take: Take) -> list[Callable[[], Memory | None]]:
        """Split the read of a byte range into functions that several threads may call.

        Each returns None except the last, which must be called after the others have finished.
        """
        ...

    def outline(self, beginning: bytes) -> AbstractContextManager[Path]:
        """Return a context manager for a local file with the same size and beginning."""
        ...


def open_weights(path: Path) -> WeightFile:
    """Open a weight file on disk, or the object that a reference file names.

    Raises: CheckpointError: the file cannot be read.
    """
    try:
        reference = reference_of(path)
        return DiskFile(path) if reference is None else ObjectFile(reference)
    except OSError as error:
        raise unreadable(path, error) from error
