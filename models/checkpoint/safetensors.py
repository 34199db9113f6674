"""Arrays of safetensors files, not read yet: where a component's are, and what fills one leaf."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from models.checkpoint.direct_io import DiskFile, Memory, Take, aligned
from models.checkpoint.folder import CheckpointError, unreadable
from models.checkpoint.key_mapping import Prepare, Target

Shape = tuple[int, ...]

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(jnp.bfloat16)}
"""Dtypes that networks are made of, as the files name them."""
LENGTH_BYTES = 8
"""Width of the number at a file's beginning that says how long its header is."""


@dataclass(frozen=True)
class Tensor:
    """Array of a safetensors file, not read yet."""

    key: str
    file: DiskFile
    path: Path
    shape: Shape
    kind: str
    start: int
    """Byte in the file."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of the array.

        Raises: KeyError: not one of `DTYPES`.
        """
        return DTYPES[self.kind]

    @property
    def row_bytes(self) -> int:
        """Bytes of one index on the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read these rows of the first axis. From any thread.

        Raises:
            CheckpointError: the file has changed or cannot be read.
        """
        with self._blamed():
            memory = self.file.read(*self._bounds(first, stop), take)
        return self._rows(memory, stop - first)

    def parts(self, first: int, stop: int, take: Take) -> list[Callable[[], np.ndarray | None]]:
        """The same in stretches, as `DiskFile.parts`. Raises: as `read`, each."""

        def part(work: Callable[[], Memory | None]) -> np.ndarray | None:
            with self._blamed():
                memory = work()
            return None if memory is None else self._rows(memory, stop - first)

        works = self.file.parts(*self._bounds(first, stop), take)
        return [partial(part, work) for work in works]

    def _bounds(self, first: int, stop: int) -> tuple[int, int]:
        """Return the bounds of these rows in the file."""
        return self.start + first * self.row_bytes, self.start + stop * self.row_bytes

    def _rows(self, memory: Memory, count: int) -> np.ndarray:
        return memory.view(self.dtype).reshape((count, *self.shape[1:]))

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Raises: CheckpointError: what could not be read."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path}: {self.key} cannot be read ({error})") from error


@dataclass(frozen=True)
class ComponentFiles:
    """Files of a component's arrays: its own, or one file shared with others."""

    component: str
    """Name of the component, for messages."""
    files: tuple[Path, ...]
    prefix: str = ""
    """Prefix of its keys; the rename table knows what follows. Other keys are someone else's."""


@dataclass(frozen=True)
class Filling:
    """Filling of one place: a tensor, or one of the equal slices that several places share."""

    tensor: Tensor
    goal: Target
    prepare: Prepare | None
    number: int
    count: int

    @property
    def rows(self) -> int:
        """Number of rows on the first axis, as the file has it."""
        return self.tensor.shape[0] // self.count

    @property
    def is_whole(self) -> bool:
        """Return whether it is only to be had as a whole."""
        return self.prepare is not None

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read these of its rows as in the file, from any thread. Raises: CheckpointError."""
        own = self.number * self.rows
        if self.prepare is None:
            return self.tensor.read(own + first, own + stop, take)
        return self.prepare(self.tensor.read(own, own + self.rows, take))[first:stop]

    def parts(self, take: Take) -> list[Callable[[], np.ndarray | None]]:
        """Return reads of all its rows for several threads; the last one returns them."""
        if self.prepare is not None:
            return [lambda: self.read(0, self.rows, take)]
        own = self.number * self.rows
        return self.tensor.parts(own, own + self.rows, take)

    def shape_in_file(self, expected: Shape) -> Shape:
        """Return the shape of a tensor that fills this place."""
        shape = expected[::-1] if self.goal.transposed else expected
        return shape if self.count == 1 else (self.count * shape[0], *shape[1:])


def open_tensors(part: ComponentFiles, files: ExitStack) -> dict[str, Tensor]:
    """The component's tensors, by what follows the prefix. Raises: CheckpointError."""
    tensors: dict[str, Tensor] = {}
    for path in part.files:
        entries, start = read_header(path)
        file = _opened(path)
        files.callback(file.close)
        for key, entry in entries.items():
            if key.startswith(part.prefix):
                shape, place = tuple(entry["shape"]), start + entry["data_offsets"][0]
                tensor = Tensor(key, file, path, shape, entry["dtype"], place)
                tensors[key.removeprefix(part.prefix)] = tensor
    return tensors


def _opened(path: Path) -> DiskFile:
    """Raises: CheckpointError."""
    try:
        return DiskFile(path)
    except OSError as error:
        raise unreadable(path, error) from error


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Read what a file says of its tensors, and the offset behind it, where the first one begins.

    Raises: CheckpointError: it is not whole, or cannot be read.
    """
    try:
        with path.open("rb") as file:  # first: of one that may not be read, the next says otherwise
            size = int.from_bytes(file.read(LENGTH_BYTES), "little")
            header = file.read(size) if size <= os.fstat(file.fileno()).st_size else b""
        with safe_open(path, framework="numpy"):  # knows all that may be wrong with a header
            pass
    except SafetensorError as error:
        raise CheckpointError(
            f"{path}: not a whole safetensors file ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    return entries, LENGTH_BYTES + size
