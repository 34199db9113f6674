"""Lazily read tensors of weight files: components, slices, and tensors by key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.checkpoint.direct_io import Take, aligned
from models.checkpoint.headers import read_header
from models.checkpoint.key_mapping import Prepare, Target
from models.checkpoint.scales import with_scales
from models.checkpoint.tensor import Shape, Tensor
from models.checkpoint.weight_file import open_weights


@dataclass(frozen=True)
class ComponentFiles:
    """Weight files of a component: separate files, or one file shared with other components."""

    component: str
    """Name of the component, for messages."""
    files: tuple[Path, ...]
    prefix: str = ""
    """Prefix of its keys, which the rename table omits. Keys without the prefix belong to other
    components."""


class Slice(NamedTuple):
    """Slice of a tensor of a file along its first axis."""

    first: int
    stop: int
    whole: int
    """Expected rows of the complete tensor."""


@dataclass(frozen=True)
class Filling:
    """Source of a leaf's values: a tensor, or a slice of a tensor that several leaves share."""

    tensor: Tensor
    goal: Target
    prepare: Prepare | None
    slice: Slice | None = None

    @property
    def rows(self) -> int:
        """Number of rows on the first axis, as stored."""
        return self.slice.stop - self.slice.first if self.slice else self.tensor.shape[0]

    @property
    def _first(self) -> int:
        return self.slice.first if self.slice else 0

    @property
    def is_whole(self) -> bool:
        """True if the tensor cannot be read by rows."""
        return self.prepare is not None

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read rows `first` to `stop` as stored; thread-safe. Raises: CheckpointError."""
        offset = self._first
        if self.prepare is None:
            return self.tensor.read(offset + first, offset + stop, take)
        return self.prepare(self.tensor.read(offset, offset + self.rows, take))[first:stop]

    def parts(self, take: Take) -> list[Callable[[], np.ndarray | None]]:
        """Return functions that read all rows in several threads; the last one returns the rows."""
        if self.prepare is not None:
            return [lambda: self.read(0, self.rows, take)]
        offset = self._first
        return self.tensor.parts(offset, offset + self.rows, take)

    def shape_in_file(self, expected: Shape) -> Shape:
        """Return the shape that the tensor must have in the file."""
        shape = expected[::-1] if self.goal.transposed else expected
        return (self.slice.whole, *shape[1:]) if self.slice else shape


def open_tensors(part: ComponentFiles, files: ExitStack) -> dict[str, Tensor]:
    """Open the component's tensors, keyed without the prefix; scales are merged into weights.

    Raises: CheckpointError.
    """
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for path in part.files:
        file = open_weights(path)
        files.callback(file.close)
        header = read_header(path, file)
        metadata |= header.metadata
        for key, (kind, shape, start) in header.arrays.items():
            if key.startswith(part.prefix):
                tensors[key.removeprefix(part.prefix)] = Tensor(key, file, path, shape, kind, start)
    return with_scales(tensors, metadata, part.files[0])
