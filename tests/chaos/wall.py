"""A failing store, whose folder is atomically replaced by a plain file, and restored."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

AT_FDCWD = -100
RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


class Wall:
    """Makes a store unusable even for root, which bypasses permissions but cannot open a file as a
    folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder.with_name(f"{folder.name} away")
        self._file.write_text("no folder")

    def put_up(self) -> None:
        self._exchange()

    def take_down(self) -> None:
        self._exchange()

    def _exchange(self) -> None:
        names = (os.fsencode(path) for path in (self._folder, self._file))
        first, second = names
        if _libc.renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE):
            raise OSError(ctypes.get_errno(), "cannot exchange", str(self._folder))
