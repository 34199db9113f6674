"""Direct reads of weight files: exact bytes, each read once from disk, outside the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models.checkpoint.direct_io import STRETCH, DiskFile, aligned

SIZE = 2 * STRETCH + 12_345


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """File of random bytes that is not in the page cache."""
    file = tmp_path / "weights"
    file.write_bytes(np.random.default_rng(0).bytes(SIZE))
    forget(file)
    return file


@pytest.fixture
def opened(path: Path) -> Iterator[DiskFile]:
    file = DiskFile(path)
    yield file
    file.close()


def forget(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_pages(path: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        resident = (ctypes.c_ubyte * -(-SIZE // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapping)
        status = libc.mincore(ctypes.byref(start), ctypes.c_size_t(SIZE), resident)
        del start
    assert status == 0, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in resident)


def test_uncached_range_is_read_once(path: Path, opened: DiskFile) -> None:
    """Each byte is read once, without the kernel's read-ahead.

    Read-ahead starts with a read of an uncached range. It read half as much again with a limit of 8
    MiB, and arbitrary amounts on fast disks.
    """
    assert bytes(opened.read(0, SIZE, aligned)) == path.read_bytes()
    forget(path)
    assert cached_pages(path) == 0
    opened.read(0, SIZE, aligned)
    if opened.is_direct:  # some file systems support only cached reads
        assert cached_pages(path) == 0


@pytest.mark.parametrize("known", [SIZE, STRETCH, STRETCH + 8192, 4096])
@pytest.mark.parametrize("bounds", [(0, SIZE), (5, STRETCH + 99), (STRETCH + 4097, SIZE - 1)])
def test_partly_cached_file(
    path: Path, opened: DiskFile, known: int, bounds: tuple[int, int]
) -> None:
    with path.open("rb") as file:
        file.read(known)
    start, stop = bounds
    assert bytes(opened.read(start, stop, aligned)) == path.read_bytes()[start:stop]


def test_a_file_that_was_cut_off(path: Path, opened: DiskFile) -> None:
    os.truncate(path, STRETCH)
    with pytest.raises(OSError, match=f"the file ends at byte {STRETCH}"):
        opened.read(0, SIZE, aligned)
