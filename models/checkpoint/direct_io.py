"""Files of weights, read in long stretches past the page cache.

A pool reads its weights once: going through the page cache would copy each byte, push out what
other processes keep there, and cost several times the processor's time. What the cache already
holds is taken from it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint.page_cache import CachedPart

BLOCK = 4096
"""Bytes; a disk's own reads begin, end and are put down in memory at multiples of it."""
STRETCH = 16 << 20
"""Bytes of one read. A disk gives no more in longer ones."""

Memory = np.ndarray[Any, np.dtype[np.uint8]]
Take = Callable[[int], Memory]
"""Allocator of memory for one read: so many bytes, beginning at a multiple of `BLOCK`."""


class DiskFile:
    """File on a disk, to be read from any thread."""

    readers = 8
    """Threads that should read it at a time: a disk wants several reads, and turning kernels on the
    host several cores."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError."""
        self._path = path
        self._cached = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._in_memory = CachedPart(self._cached)
        self._direct = _open_direct(path)
        self._is_direct = self._direct is not None
        self.size = os.fstat(self._cached).st_size

    @property
    def is_direct(self) -> bool:
        """Return whether it is read past the page cache."""
        return self._is_direct

    def close(self) -> None:
        """Close both file descriptors."""
        self._in_memory.close()
        os.close(self._cached)
        if self._direct is not None:
            os.close(self._direct)

    def read(self, start: int, stop: int, take: Take) -> Memory:
        """The bytes from `start` to `stop`, in memory of `take`. Raises: OSError."""
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
        """Yield the same in stretches, for any threads side by side.

        Those before the last one give None, and the last one is to be asked when the others are
        done. Raises: OSError.
        """
        first = start // BLOCK * BLOCK
        whole = once(lambda: take(-(-(stop - first) // BLOCK) * BLOCK))
        bounds = [start, *range(first + STRETCH, stop, STRETCH), stop]

        def part(begin: int, end: int) -> Memory | None:
            place = begin // BLOCK * BLOCK - first
            self.read(begin, end, lambda size: whole()[place : place + size])
            return whole()[start - first : stop - first] if end == stop else None

        return [partial(part, begin, end) for begin, end in pairwise(bounds)]

    def outline(self, beginning: bytes) -> AbstractContextManager[Path]:
        """Enter with the file itself, as `WeightFile.outline`."""
        return nullcontext(self._path)

    def _some(self, memory: memoryview, start: int) -> int:
        if self._direct is None or not self._is_direct:
            return os.preadv(self._cached, [memory], start)
        known = self._in_memory.beginning(start, len(memory))
        if known and (count := self._of_the_cache(memory[:known], start)):
            return count
        try:
            return os.preadv(self._direct, [memory], start)
        except OSError:  # a disk of larger blocks; if it is broken, the next line says so
            self._is_direct = False
            return os.preadv(self._cached, [memory], start)

    def _of_the_cache(self, memory: memoryview, start: int) -> int:
        """Bytes that the page cache had; 0: none, or a file system that cannot tell."""
        try:
            return os.preadv(self._cached, [memory], start, os.RWF_NOWAIT)
        except OSError:
            return 0


def once(make: Callable[[], Memory]) -> Callable[[], Memory]:
    """Return a function that calls `make` once, in whatever thread asks first."""
    lock, made = threading.Lock(), list[Memory]()

    def get() -> Memory:
        with lock:
            if not made:
                made.append(make())
            return made[0]

    return get


def aligned(size: int) -> Memory:
    """Fresh memory, which nobody has touched yet."""
    memory = np.empty(size + BLOCK, np.uint8)
    start = -memory.ctypes.data % BLOCK
    return memory[start : start + size]


class Scratch:
    """Memory that is used again: what was taken before is lost. For one thread."""

    def __init__(self) -> None:
        self._memory = aligned(0)

    def take(self, size: int) -> Memory:
        """Return memory of that size; the one piece that there is."""
        if len(self._memory) < size:
            self._memory = aligned(size)
        return self._memory[:size]


class BufferPool:
    """Memory that is lent and comes back: touching fresh pages costs as much as a fast disk's read.

    Args:
        most: bytes that lie here unused.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[Memory] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Memory:
        """Return memory of that size, free since its last user or new."""
        with self._lock:
            fitting = [place for place, memory in enumerate(self._free) if len(memory) >= size]
            best = min(fitting, key=lambda place: len(self._free[place]), default=None)
            memory = None if best is None else self._free.pop(best)
        return (aligned(size) if memory is None else memory)[:size]

    def give(self, memory: np.ndarray) -> None:
        """Back: nobody may use it, or what was made of it, any more."""
        whole = memory
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        start, size = -whole.ctypes.data % BLOCK, whole.nbytes - BLOCK
        with self._lock:
            self._free.append(whole.reshape(-1).view(np.uint8)[start : start + max(size, 0)])
            while sum(map(len, self._free)) > self._most:
                self._free.pop(0)


def _open_direct(path: Path) -> int | None:
    """Open for direct reads; None where the file system (tmpfs, some over a network) has none."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return None
