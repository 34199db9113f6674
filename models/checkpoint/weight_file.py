"""Source of a file of weights: the disk, or an object store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from models.checkpoint.direct_io import DiskFile, Memory, Take
from models.checkpoint.folder import unreadable
from models.checkpoint.object_file import ObjectFile, reference_of


class WeightFile(Protocol):
    """Open file, to be read from any thread."""

    readers: int
    """Threads that should read it at a time."""
    size: int
    """Bytes."""

    def close(self) -> None:
        """Give back what it holds."""

    def read(self, start: int, stop: int, take: Take) -> Memory:
        """The bytes from `start` to `stop`, in memory of `take`. Raises: OSError; its own."""
        ...

    def parts(self, start: int, stop: int, take: Take) -> list[Callable[[], Memory | None]]:
        """Return reads of the same in stretches, for any threads side by side.

        Those before the last one give None, and the last one is to be asked when the others are
        done.
        """
        ...

    def outline(self, beginning: bytes) -> AbstractContextManager[Path]:
        """Enter with a file of that size and beginning, on the disk."""
        ...


def open_weights(path: Path) -> WeightFile:
    """Open a file of weights, or the object that a reference in its place names.

    Raises: CheckpointError: it cannot be read.
    """
    try:
        reference = reference_of(path)
        return DiskFile(path) if reference is None else ObjectFile(reference)
    except OSError as error:
        raise unreadable(path, error) from error
