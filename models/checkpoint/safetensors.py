"""Arrays of safetensors files, not read yet: where a component's are, and what fills one leaf."""

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

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(jnp.bfloat16)}
"""Dtypes that networks are made of, as the files name them."""
FLOAT8 = {"F8_E4M3": np.dtype(jnp.float8_e4m3fn), "F8_E5M2": np.dtype(jnp.float8_e5m2)}
"""Dtypes that files are made smaller by; nothing is computed in them."""
READ = DTYPES | FLOAT8
SCALES = (".scale_weight", ".weight_scale")
"""Endings of what scales a weight in a file of 8-bit floats, in ComfyUI's older and newer files."""
OF_ACTIVATIONS = (".scale_input", ".input_scale", ".comfy_quant", "scaled_fp8")
"""Endings of what tells how to compute in 8 bits, which nothing here does."""
LENGTH_BYTES = 8
"""Width of the number at a file's beginning that says how long its header is."""


@dataclass(frozen=True)
class Tensor:
    """Array of a safetensors file, not read yet."""

    key: str
    file: WeightFile
    path: Path
    shape: Shape
    kind: str
    start: int
    """Byte in the file."""
    scale: Tensor | None = None
    """Factor of the whole array, or one of each row; None: 1."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of the array in the file.

        Raises: KeyError: not one of `READ`.
        """
        return READ[self.kind]

    @property
    def row_bytes(self) -> int:
        """Bytes of one index on the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read these rows of the first axis, scaled, in one of `DTYPES`. From any thread.

        Raises:
            CheckpointError: the file has changed or cannot be read.
        """
        with self._blamed():
            memory = self.file.read(*self._bounds(first, stop), take)
        return self._rows(memory, first, stop)

    def parts(self, first: int, stop: int, take: Take) -> list[Callable[[], np.ndarray | None]]:
        """The same in stretches, as `WeightFile.parts`. Raises: as `read`, each."""

        def part(work: Callable[[], Memory | None]) -> np.ndarray | None:
            with self._blamed():
                memory = work()
            return None if memory is None else self._rows(memory, first, stop)

        works = self.file.parts(*self._bounds(first, stop), take)
        return [partial(part, work) for work in works]

    def _bounds(self, first: int, stop: int) -> tuple[int, int]:
        """Return the bounds of these rows in the file."""
        return self.start + first * self.row_bytes, self.start + stop * self.row_bytes

    def _rows(self, memory: Memory, first: int, stop: int) -> np.ndarray:
        rows = memory.view(self.dtype).reshape((stop - first, *self.shape[1:]))
        if self.scale is not None:
            return rows.astype(np.float32) * self._scale(first, stop)
        return rows.astype(jnp.bfloat16) if self.kind in FLOAT8 else rows  # which has them all

    def _scale(self, first: int, stop: int) -> np.ndarray:
        """Factors of these rows, to multiply them by."""
        assert self.scale is not None
        whole = math.prod(self.scale.shape) == 1
        factors = self.scale.read(0, 1) if whole else self.scale.read(first, stop)
        return factors.astype(np.float32).reshape(-1, *[1] * (len(self.shape) - 1))

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


class Slice(NamedTuple):
    """Slice of a tensor on its first axis."""

    first: int
    stop: int
    whole: int
    """Rows that the tensor should have."""


@dataclass(frozen=True)
class Filling:
    """Filling of one place: a tensor, or one of the slices that several places share."""

    tensor: Tensor
    goal: Target
    prepare: Prepare | None
    slice: Slice | None = None

    @property
    def rows(self) -> int:
        """Number of rows on the first axis, as the file has it."""
        return self.slice.stop - self.slice.first if self.slice else self.tensor.shape[0]

    @property
    def _first(self) -> int:
        return self.slice.first if self.slice else 0

    @property
    def is_whole(self) -> bool:
        """Return whether it is only to be had as a whole."""
        return self.prepare is not None

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read these of its rows as in the file, from any thread. Raises: CheckpointError."""
        own = self._first
        if self.prepare is None:
            return self.tensor.read(own + first, own + stop, take)
        return self.prepare(self.tensor.read(own, own + self.rows, take))[first:stop]

    def parts(self, take: Take) -> list[Callable[[], np.ndarray | None]]:
        """Return reads of all its rows for several threads; the last one returns them."""
        if self.prepare is not None:
            return [lambda: self.read(0, self.rows, take)]
        own = self._first
        return self.tensor.parts(own, own + self.rows, take)

    def shape_in_file(self, expected: Shape) -> Shape:
        """Return the shape of a tensor that fills this place."""
        shape = expected[::-1] if self.goal.transposed else expected
        return (self.slice.whole, *shape[1:]) if self.slice else shape


def open_tensors(part: ComponentFiles, files: ExitStack) -> dict[str, Tensor]:
    """The component's tensors, by what follows the prefix; what scales others is part of it.

    Raises: CheckpointError.
    """
    tensors: dict[str, Tensor] = {}
    for path in part.files:
        file = open_weights(path)
        files.callback(file.close)
        entries, start = _read_header(path, file)
        for key, entry in entries.items():
            if key.startswith(part.prefix):
                shape, place = tuple(entry["shape"]), start + entry["data_offsets"][0]
                tensor = Tensor(key, file, path, shape, entry["dtype"], place)
                tensors[key.removeprefix(part.prefix)] = tensor
    return _scaled(tensors)


def _scaled(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each with the one that scales it. Raises: CheckpointError."""
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
    """Raises: CheckpointError: it is for neither the whole nor rows."""
    if scale is None or math.prod(scale.shape) in (1, tensor.shape[0]):
        return scale
    raise CheckpointError(
        f"{tensor.path}: {scale.key} has the shape {list(scale.shape)}; scales of a whole array or"
        f" of its {tensor.shape[0]} rows are read"
    )


def _read_header(path: Path, file: WeightFile) -> tuple[dict[str, Any], int]:
    """Read what a file says of its tensors, and the offset behind it, where the first one begins.

    Raises: CheckpointError: it is not whole, or cannot be read.
    """
    try:
        beginning = bytes(file.read(0, min(LENGTH_BYTES, file.size), aligned))
        size = int.from_bytes(beginning, "little")
        whole = LENGTH_BYTES + size <= file.size
        header = bytes(file.read(LENGTH_BYTES, LENGTH_BYTES + size, aligned)) if whole else b""
        with (
            file.outline(beginning + header) as outline,
            safe_open(outline, framework="numpy"),  # knows all that may be wrong with a header
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
