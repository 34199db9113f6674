"""Query of the page cache for resident pages of a file, without triggering reads."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

import numpy as np

IS_RESIDENT = 1
"""Bit that `mincore` sets for a resident page."""


class CachedPart:
    """Resident pages of an open file.

    `RWF_NOWAIT` alone is not sufficient: on a miss, the kernel starts megabytes of readahead, and
    returns what a fast disk has delivered meanwhile.
    """

    def __init__(self, descriptor: int) -> None:
        """Map the file if the process owns it or can write to it. Raises: OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._map: mmap.mmap | None = None
        self._address = 0
        status = os.fstat(descriptor)
        if os.geteuid() not in (0, status.st_uid) and not os.access(
            f"/dev/fd/{descriptor}", os.W_OK
        ):
            return
        with suppress(OSError, ValueError):  # no mmap support, or an empty file
            self._map = mmap.mmap(descriptor, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
            self._address = np.frombuffer(self._map, np.uint8).ctypes.data

    def close(self) -> None:
        """Unmap the file whose resident pages were examined."""
        if self._map is not None:
            self._map.close()

    def beginning(self, start: int, size: int) -> int:
        """Return the number of contiguous resident bytes from `start`, at most `size`.

        Returns 0 if the system does not report residency: for files that the process neither owns
        nor may write.
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
