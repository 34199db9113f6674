"""Weight files on disk, read in long ranges with direct I/O.

A worker reads its weights once. Reading through the page cache would copy each byte, evict other
processes' pages, and cost several times the processor time. Pages that are already cached are read
from the cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from models.checkpoint.page_cache import CachedPart

BLOCK = 4096
"""Alignment of direct reads in bytes, for file offsets and memory."""
STRETCH = 16 << 20
"""Bytes per read; longer reads are not faster."""

Array = TypeVar("Array", bound=np.ndarray)
Memory = np.ndarray[Any, np.dtype[np.uint8]]
Take = Callable[[int], Memory]
"""Allocator of memory for a read: returns that many bytes, aligned to `BLOCK`."""


class DiskFile:
    """Weight file on disk; thread-safe."""

    readers = 8
    """Recommended number of concurrent threads: disks need several outstanding reads, and
    transposing kernels on the host needs several cores."""

    def __init__(self, path: Path) -> None:
        """Open the file for cached and direct reads. Raises: OSError."""
        self._path = path
        self._cached = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._in_memory = CachedPart(self._cached)
        self._direct = _open_direct(path)
        self._is_direct = self._direct is not None
        self.size = os.fstat(self._cached).st_size

    @property
    def is_direct(self) -> bool:
        """True if reads bypass the page cache."""
        return self._is_direct

    def close(self) -> None:
        """Close both descriptors of the weight file."""
        self._in_memory.close()
        os.close(self._cached)
        if self._direct is not None:
            os.close(self._direct)

    def read(self, start: int, stop: int, take: Take) -> Memory:
        """Read the bytes from `start` to `stop` into a buffer that `take` allocates.

        Raises: OSError.
        """
        first = start // BLOCK * BLOCK
        memory = take(-(-(stop - first) // BLOCK) * BLOCK)
        done = 0
        while done < stop - first:
            count = self._some(memory[done : done + STRETCH].data, first + done)
            if count == 0:
                raise OSError(f"the file ends at byte {first + done}")
            done += count
        return memory[start - first : stop - first]

    def parts(self, start: int, stop: int, take: Take) -> list[Callable[[], Memory | None]]:
        """Split the read of a byte range into functions that several threads may call.

        Each returns None except the last, which must be called after the others have finished.
        Raises: OSError.
        """
        first = start // BLOCK * BLOCK
        memory = memoized(lambda: take(-(-(stop - first) // BLOCK) * BLOCK))
        bounds = [start, *range(first + STRETCH, stop, STRETCH), stop]

        def part(begin: int, end: int) -> Memory | None:
            offset = begin // BLOCK * BLOCK - first
            self.read(begin, end, lambda size: memory()[offset : offset + size])
            return memory()[start - first : stop - first] if end == stop else None

        return [partial(part, begin, end) for begin, end in pairwise(bounds)]

    def outline(self, beginning: bytes) -> AbstractContextManager[Path]:
        """Return a context manager for the file itself, as `WeightFile.outline`."""
        return nullcontext(self._path)

    def _some(self, memory: memoryview, start: int) -> int:
        if self._direct is None or not self._is_direct:
            return os.preadv(self._cached, [memory], start)
        resident = self._in_memory.beginning(start, len(memory))
        if resident and (count := self._of_the_cache(memory[:resident], start)):
            return count
        try:
            return os.preadv(self._direct, [memory], start)
        except OSError:  # larger blocks; if the disk is broken, the next line raises
            self._is_direct = False
            return os.preadv(self._cached, [memory], start)

    def _of_the_cache(self, memory: memoryview, start: int) -> int:
        """Read from the page cache only; return the number of bytes, 0 if none are cached."""
        try:
            return os.preadv(self._cached, [memory], start, os.RWF_NOWAIT)
        except OSError:
            return 0


def memoized(make: Callable[[], Array]) -> Callable[[], Array]:
    """Return a thread-safe function that calls `make` only once, and caches its result."""
    lock, made = threading.Lock(), list[Array]()

    def get() -> Array:
        with lock:
            if not made:
                made.append(make())
            return made[0]

    return get


def aligned(size: int) -> Memory:
    """Allocate aligned memory that has not been touched yet."""
    memory = np.empty(size + BLOCK, np.uint8)
    start = -memory.ctypes.data % BLOCK
    return memory[start : start + size]


class Scratch:
    """Reusable buffer for one thread: each `take` invalidates the previous one."""

    def __init__(self) -> None:
        self._memory = aligned(0)

    def take(self, size: int) -> Memory:
        """Return the buffer with that size, growing it if necessary."""
        if len(self._memory) < size:
            self._memory = aligned(size)
        return self._memory[:size]


class BufferPool:
    """Pool of reusable buffers: touching fresh pages costs as much as a fast disk's read.

    Args:
        most: maximum bytes of unused buffers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[Memory] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Memory:
        """Return memory of that size, from the pool or new."""
        with self._lock:
            fitting = [index for index, memory in enumerate(self._free) if len(memory) >= size]
            best = min(fitting, key=lambda index: len(self._free[index]), default=None)
            memory = None if best is None else self._free.pop(best)
        return (aligned(size) if memory is None else memory)[:size]

    def give(self, memory: np.ndarray) -> None:
        """Return memory to the pool; neither it nor its views may be used afterwards."""
        buffer = memory
        while isinstance(buffer.base, np.ndarray):
            buffer = buffer.base
        start, size = -buffer.ctypes.data % BLOCK, buffer.nbytes - BLOCK
        with self._lock:
            self._free.append(buffer.reshape(-1).view(np.uint8)[start : start + max(size, 0)])
            while sum(map(len, self._free)) > self._most:
                self._free.pop(0)


def _open_direct(path: Path) -> int | None:
    """Open a file for direct reads; None if the file system has none (tmpfs, some network ones)."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return None
