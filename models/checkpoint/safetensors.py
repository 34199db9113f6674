"""Lazily read tensors of safetensors files: headers, ranges, scales and slices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from models.checkpoint.direct_io import Memory, Take, aligned
from models.checkpoint.folder import CheckpointError, unreadable
from models.checkpoint.key_mapping import Prepare, Target
from models.checkpoint.weight_file import WeightFile, open_weights

Shape = tuple[int, ...]

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
"""Dtypes that networks compute with, by safetensors name."""
FLOAT8: dict[str, np.dtype[Any]] = {
    "F8_E4M3": np.dtype(jnp.float8_e4m3fn),
    "F8_E5M2": np.dtype(jnp.float8_e5m2),
}
"""Storage dtypes that make files smaller; not used for computation."""
READ = DTYPES | FLOAT8
SCALES = (".scale_weight", ".weight_scale")
"""Key endings of the scale of an 8-bit float weight, in ComfyUI's older and newer files."""
OF_ACTIVATIONS = (".scale_input", ".input_scale", ".comfy_quant", "scaled_fp8")
"""Key endings of parameters for 8-bit computation, which are ignored."""
LENGTH_BYTES = 8
"""Width of the header length at the beginning of a file."""


@dataclass(frozen=True)
class Tensor:
    """Tensor of a safetensors file, not read yet."""

    key: str
    file: WeightFile
    path: Path
    shape: Shape
    kind: str
    start: int
    """Offset in the file, in bytes."""
    scale: Tensor | None = None
    """Scale of the entire array or of each row; None: 1."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the array in the file.

        Raises: KeyError: not one of `READ`.
        """
        return READ[self.kind]

    @property
    def row_bytes(self) -> int:
        """Bytes per index of the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read these rows of the first axis, scaled, in one of `DTYPES`. Thread-safe.

        Raises:
            CheckpointError: the file has changed or cannot be read.
        """
        with self._blamed():
            memory = self.file.read(*self._bounds(first, stop), take)
        return self._rows(memory, first, stop)

    def parts(self, first: int, stop: int, take: Take) -> list[Callable[[], np.ndarray | None]]:
        """Return functions that read the rows in parts (`WeightFile.parts`). Raises: as `read`."""

        def part(work: Callable[[], Memory | None]) -> np.ndarray | None:
            with self._blamed():
                memory = work()
            return None if memory is None else self._rows(memory, first, stop)

        works = self.file.parts(*self._bounds(first, stop), take)
        return [partial(part, work) for work in works]

    def _bounds(self, first: int, stop: int) -> tuple[int, int]:
        """Return the byte range of these rows in the file."""
        return self.start + first * self.row_bytes, self.start + stop * self.row_bytes

    def _rows(self, memory: Memory, first: int, stop: int) -> np.ndarray:
        rows = memory.view(self.dtype).reshape((stop - first, *self.shape[1:]))
        if self.scale is not None:
            scaled: np.ndarray = rows.astype(np.float32) * self._scale(first, stop)
            return scaled
        return rows.astype(jnp.bfloat16) if self.kind in FLOAT8 else rows  # exact in bfloat16

    def _scale(self, first: int, stop: int) -> np.ndarray:
        """Return the scales of these rows, broadcastable to them."""
        assert self.scale is not None
        is_scalar = math.prod(self.scale.shape) == 1
        factors = self.scale.read(0, 1) if is_scalar else self.scale.read(first, stop)
        return factors.astype(np.float32).reshape(-1, *[1] * (len(self.shape) - 1))

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Convert OSError to CheckpointError with the file and key.

        Raises: CheckpointError.
        """
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path}: {self.key} cannot be read ({error})") from error


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
    """Slice of a tensor along its first axis."""

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
        """True if the tensor can only be read completely."""
        return self.prepare is not None

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read these rows as stored; thread-safe. Raises: CheckpointError."""
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
    for path in part.files:
        file = open_weights(path)
        files.callback(file.close)
        entries, start = _read_header(path, file)
        for key, entry in entries.items():
            if key.startswith(part.prefix):
                shape, offset = tuple(entry["shape"]), start + entry["data_offsets"][0]
                tensor = Tensor(key, file, path, shape, entry["dtype"], offset)
                tensors[key.removeprefix(part.prefix)] = tensor
    return _scaled(tensors)


def _scaled(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Attach scales to their tensors. Raises: CheckpointError."""
    if not any(tensor.kind in FLOAT8 for tensor in tensors.values()):
        return tensors
    scales = {
        f"{key.removesuffix(ending)}.weight": tensor
        for key, tensor in tensors.items()
        for ending in SCALES
        if key.endswith(ending)
    }
    return {
        key: replace(tensor, scale=_fitting(scales.get(key), tensor))
        for key, tensor in tensors.items()
        if not key.endswith((*SCALES, *OF_ACTIVATIONS))
    }


def _fitting(scale: Tensor | None, tensor: Tensor) -> Tensor | None:
    """Verify that a scale's shape fits its tensor.

    Raises: CheckpointError: the scale is neither scalar nor per row.
    """
    if scale is None or math.prod(scale.shape) in (1, tensor.shape[0]):
        return scale
    raise CheckpointError(
        f"{tensor.path}: {scale.key} has the shape {list(scale.shape)}; scales of a whole array or"
        f" of its {tensor.shape[0]} rows are read"
    )


def _read_header(path: Path, file: WeightFile) -> tuple[dict[str, Any], int]:
    """Read a file's tensor entries, and the offset after the header, where data begins.

    Raises: CheckpointError: the file is truncated or cannot be read.
    """
    try:
        beginning = bytes(file.read(0, min(LENGTH_BYTES, file.size), aligned))
        size = int.from_bytes(beginning, "little")
        is_complete = LENGTH_BYTES + size <= file.size
        header = (
            bytes(file.read(LENGTH_BYTES, LENGTH_BYTES + size, aligned)) if is_complete else b""
        )
        with (
            file.outline(beginning + header) as outline,
            safe_open(outline, framework="numpy"),  # validates the header completely
        ):
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
