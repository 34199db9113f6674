"""Arrays of safetensors files, not read yet: where a component's are, and what fills one leaf."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from models.checkpoint import CheckpointError
from models.renames import Prepare, Target

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """One array of a safetensors file, not read yet."""

    key: str
    file: Any
    path: Path
    shape: Shape
    kind: str

    def read(self, number: int, count: int) -> np.ndarray:
        """One of `count` equal slices along the first axis.

        Raises:
            CheckpointError: the file has changed or cannot be read.
        """
        try:
            if count == 1:
                return self.file.get_tensor(self.key)
            rows = self.shape[0] // count
            return self.file.get_slice(self.key)[number * rows : (number + 1) * rows]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.path}: {self.key} cannot be read ({error})") from error


@dataclass(frozen=True)
class Part:
    """Where the arrays of a component are: in files of its own, or in one file with others'."""

    component: str
    """Its name, for messages."""
    files: tuple[Path, ...]
    prefix: str = ""
    """Of its keys; the rename table knows what follows. All other keys are someone else's."""


@dataclass(frozen=True)
class Filling:
    """What fills one place: a tensor, or one of the equal slices that several places share."""

    tensor: Tensor
    goal: Target
    prepare: Prepare | None
    number: int
    count: int

    def read(self) -> np.ndarray:
        """In torch's layout. Raises: CheckpointError."""
        array = self.tensor.read(self.number, self.count)
        array = array if self.prepare is None else self.prepare(array)
        return array.T if self.goal.transposed else array

    def shape_in_file(self, expected: Shape) -> Shape:
        """Of a tensor that gives what is expected of this place."""
        shape = expected[::-1] if self.goal.transposed else expected
        return shape if self.count == 1 else (self.count * shape[0], *shape[1:])


def open_tensors(part: Part, files: ExitStack) -> dict[str, Tensor]:
    """The component's tensors, by what follows the prefix."""
    tensors: dict[str, Tensor] = {}
    for path in part.files:
        try:
            # Read, not mapped: pages of a mapped file count as the process's memory.
            file = files.enter_context(safe_open(path, framework="numpy", backend="pread"))
        except SafetensorError as error:
            raise CheckpointError(
                f"{path}: not a whole safetensors file ({error}); fetch it again"
            ) from error
        for key in file.keys():  # noqa: SIM118 (not a mapping)
            if key.startswith(part.prefix):
                entry = file.get_slice(key)
                shape, kind = tuple(entry.get_shape()), entry.get_dtype()
                tensors[key.removeprefix(part.prefix)] = Tensor(key, file, path, shape, kind)
    return tensors
