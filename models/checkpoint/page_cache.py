"""Pages of a file that the page cache has, asked for without making the kernel read."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

import numpy as np

IS_RESIDENT = 1
"""Bit of `mincore` that says so of a page."""


class CachedPart:
    """Pages of an open file that are in memory.

    `RWF_NOWAIT` alone cannot tell: asked for what it does not have, the kernel begins to read ahead
    by megabytes, and gives what a fast disk brought meanwhile.
    """

    def __init__(self, descriptor: int) -> None:
        """Raises: OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._map: mmap.mmap | None = None
        self._address = 0
        found = os.fstat(descriptor)
        if os.geteuid() not in (0, found.st_uid) and not os.access(
            f"/dev/fd/{descriptor}", os.W_OK
        ):
            return
        with suppress(OSError, ValueError):  # a file system without maps; an empty file
            self._map = mmap.mmap(descriptor, found.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
            self._address = np.frombuffer(self._map, np.uint8).ctypes.data

    def close(self) -> None:
        """Give the file's addresses back."""
        if self._map is not None:
            self._map.close()

    def beginning(self, start: int, size: int) -> int:
        """Return how many bytes from `start` on are in memory without a gap, at most `size`.

        0 where the system does not say: of a file that the process neither owns nor may write.
        """
        if self._map is None:
            return 0
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        length = min(start + size, len(self._map)) - first
        if length <= 0:
            return 0
        pages = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
        if self._libc.mincore(
            ctypes.c_void_p(self._address + first),
            ctypes.c_size_t(length),
            pages.ctypes.data_as(ctypes.c_void_p),
        ):
            return 0
        missing = np.flatnonzero((pages & IS_RESIDENT) == 0)
        if not len(missing):
            return size
        return max(first + int(missing[0]) * mmap.PAGESIZE - start, 0)
