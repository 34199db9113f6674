"""Tensor of a weight file, read by rows: decoded, and multiplied by its scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from models.checkpoint.direct_io import Memory, Take, aligned, memoized
from models.checkpoint.folder import CheckpointError
from models.checkpoint.number_formats import FORMATS, WEIGHTS, NumberFormat
from models.checkpoint.weight_file import WeightFile

Shape = tuple[int, ...]

PART = 1 << 22
"""Numbers of a tensor in blocks that a thread decodes per task."""


def unrotated(rows: np.ndarray, size: int) -> np.ndarray:
    """Multiply each `size` numbers of a row by the normalized regular Hadamard matrix.

    It is symmetric, its own inverse, and a Kronecker power of the matrix of order 4 whose rows are
    the sum of all numbers but for one negative sign, halved.

    Source: ConvRot (arXiv 2512.03673), section 3, for regular Hadamard matrices.
    """
    for step in (4**power for power in range(round(math.log(size, 4)))):
        parts = rows.reshape(-1, 4, step)
        rows = parts.sum(axis=1, keepdims=True) / 2 - parts[:, ::-1]
    return rows


@dataclass(frozen=True)
class Tensor:
    """Tensor of a weight file, not read yet."""

    key: str
    file: WeightFile
    path: Path
    shape: Shape
    kind: str
    start: int
    """Offset in the file, in bytes."""
    scale: Tensor | None = None
    """Scales (rows, columns) of equal blocks of the matrix; None: 1."""
    rotated: int = 0
    """Numbers of a row that were rotated together, as `unrotated` reverts; 0: none."""

    @property
    def format(self) -> NumberFormat:
        """Format of the tensor's stored numbers. Raises: KeyError: not one of `FORMATS`."""
        return FORMATS[self.kind]

    @property
    def is_float(self) -> bool:
        """True if the stored numbers are floats in a supported format."""
        return self.kind in WEIGHTS

    @property
    def is_weight(self) -> bool:
        """True if the numbers can be weights: floats, or whole numbers with a scale."""
        return self.is_float or (self.scale is not None and self.kind in FORMATS)

    @property
    def row_bytes(self) -> int:
        """Bytes per index of the first axis, as `read` returns it."""
        itemsize = 4 if self.scale is not None else self.format.dtype.itemsize
        return self._row * itemsize

    @property
    def _row(self) -> int:
        """Number of elements per index of the first axis."""
        return math.prod(self.shape[1:])

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read these rows of the first axis: decoded, and scaled in float32. Thread-safe.

        Raises:
            CheckpointError: the file has changed or cannot be read.
        """
        with self._blamed():
            memory = self.file.read(*self._bounds(first, stop), take)
        return self._rows(memory, first, stop)

    def parts(self, first: int, stop: int, take: Take) -> list[Callable[[], np.ndarray | None]]:
        """Return functions that read the rows in parts (`WeightFile.parts`). Raises: as `read`."""
        if self.format.numbers > 1 and stop > first:
            return self._decoded_parts(first, stop)

        def part(work: Callable[[], Memory | None]) -> np.ndarray | None:
            with self._blamed():
                memory = work()
            return None if memory is None else self._rows(memory, first, stop)

        works = self.file.parts(*self._bounds(first, stop), take)
        return [partial(part, work) for work in works]

    def _decoded_parts(self, first: int, stop: int) -> list[Callable[[], np.ndarray | None]]:
        """Return functions that each read and decode some rows of a tensor in blocks."""
        rows = memoized(lambda: np.empty((stop - first, *self.shape[1:]), np.float32))
        bounds = [*range(first, stop, max(1, PART // max(1, self._row))), stop]

        def part(begin: int, end: int) -> np.ndarray | None:
            rows()[begin - first : end - first] = self.read(begin, end)
            return rows() if end == stop else None

        return [partial(part, begin, end) for begin, end in pairwise(bounds)]

    def _bounds(self, first: int, stop: int) -> tuple[int, int]:
        """Return the byte range of the blocks that contain these rows of the tensor."""
        numbers, size = self.format.numbers, self.format.bytes
        begin, end = first * self._row // numbers, -(-stop * self._row // numbers)
        return self.start + begin * size, self.start + end * size

    def _rows(self, memory: Memory, first: int, stop: int) -> np.ndarray:
        """Decode blocks of the file, and return rows `first` to `stop` of the tensor."""
        before = first * self._row % self.format.numbers
        numbers = self.format.decode(memory)[before : before + (stop - first) * self._row]
        if self.scale is not None:
            numbers = self._scaled(numbers, self.scale, first, stop)
        return numbers.reshape((stop - first, *self.shape[1:]))

    def _scaled(self, numbers: np.ndarray, scale: Tensor, first: int, stop: int) -> np.ndarray:
        """Multiply rows by the scales of their blocks, in float32."""
        height, columns = self.shape[0] // scale.shape[0] if self.shape else 1, scale.shape[1]
        top = first // height
        factors = scale.read(top, -(-stop // height)).astype(np.float32)
        of_rows = factors.repeat(height, axis=0)[first - top * height :][: stop - first]
        blocks = numbers.astype(np.float32).reshape(stop - first, columns, -1)
        product: np.ndarray = blocks * of_rows[:, :, None]
        return unrotated(product, self.rotated) if self.rotated else product

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Convert OSError to CheckpointError with the tensor's file and key.

        Raises: CheckpointError.
        """
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path}: {self.key} cannot be read ({error})") from error
