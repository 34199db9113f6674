"""Adapter contents in a common form, independent of the file's format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from models.spec.lora import pages_of


class AdapterError(ValueError):
    """Unusable adapter file; the message contains the reason and the keys."""


class LayerPosition(NamedTuple):
    """Position of a layer in a network."""

    path: str
    """Path of its module, such as `double_blocks.image.attention.q`."""
    layer: int | None = None
    """Index in a stack of equal layers; None: not stacked."""


class KernelShape(NamedTuple):
    """Shape of a layer's kernel."""

    in_features: int
    out_features: int
    window: tuple[int, ...] = ()
    """Window of a convolution; empty: a linear layer."""


@dataclass(frozen=True)
class StoredArray:
    """Array in the file's dtype, converted only on use.

    Args:
        array: float32, float16, or the bits of bfloat16 as uint16.
    """

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, in PyTorch's order: outputs first."""
        return self.array.shape

    @property
    def is_bfloat16(self) -> bool:
        """True if `array` contains the bits of bfloat16."""
        return self.array.dtype == np.uint16

    def __getitem__(self, index: Any) -> StoredArray:
        """Return an indexed part of the array, in the file's dtype."""
        return StoredArray(self.array[index])

    def float32(self) -> np.ndarray:
        """Return the array's values in float32."""
        if not self.is_bfloat16:
            return self.array.astype(np.float32, copy=False)
        return (self.array.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Magnitude:
    """Magnitudes of a kernel's vectors after its change (DoRA).

    The kernel is m · (W + s Δ) / ‖W + s Δ‖, with the request's scale s, the change Δ and the
    magnitudes m. The norm is taken over all other axes.

    Source: Liu et al. 2024 (DoRA), eq. 5; PEFT, src/peft/tuners/lora/dora.py, for s in the norm.
    """

    values: np.ndarray
    """[out] or [in], float32."""
    of_inputs: bool = False
    """Whether each input has one; otherwise each output has."""


@dataclass(frozen=True)
class LowRank:
    """Change of one layer: y += s · (scale · up(down(x)) + bias), with the request's scale s."""

    down: StoredArray
    """[rank, in, *window]."""
    up: StoredArray
    """[out, rank]."""
    scale: float = 1.0
    """Alpha / rank."""
    bias: StoredArray | None = None
    """[out]."""
    bias_scale: float = 1.0
    magnitude: Magnitude | None = None

    @property
    def rank(self) -> int:
        """Rank of the low-rank change."""
        return self.up.shape[1]


@dataclass(frozen=True)
class Factor:
    """Matrix [rows, columns] that a file stores as a whole, as a product, or in Tucker's form.

    Args:
        arrays: [rows, columns, *window]; or a [rows, rank] and b [rank, columns, *window]; or t
            [first, second, *window], a [first, rows] and b [second, columns].
    """

    arrays: tuple[StoredArray, ...]

    def matrix(self) -> np.ndarray:
        """Return the matrix in float32; a window is part of the columns."""
        numbers = [array.float32() for array in self.arrays]
        if len(numbers) < 3:
            flat = [array.reshape(len(array), -1) for array in numbers]
            return flat[0] if len(flat) == 1 else flat[0] @ flat[1]
        core, a, b = numbers
        inner = np.einsum("ij...,jc->ic...", core, b, optimize=True)
        return np.tensordot(a, inner, (0, 0)).reshape(a.shape[1], -1)


@dataclass(frozen=True)
class Kronecker:
    """Kronecker product of two matrices: an adapter's change of a kernel (LoKr)."""

    left: Factor
    right: Factor

    def matrix(self) -> np.ndarray:
        """Return the Kronecker product in float32."""
        return np.kron(self.left.matrix(), self.right.matrix())


@dataclass(frozen=True)
class Hadamard:
    """Elementwise product of two matrices: an adapter's change of a kernel (LoHa)."""

    left: Factor
    right: Factor

    def matrix(self) -> np.ndarray:
        """Return the elementwise product in float32."""
        product: np.ndarray = self.left.matrix() * self.right.matrix()
        return product


@dataclass(frozen=True)
class Composed:
    """Change of one layer by LoKr, LoHa or a whole matrix, otherwise as `LowRank`.

    Source: Yeh et al. 2023 (LyCORIS), section 3; Hyeon-Woo et al. 2022 (FedPara), for LoHa.
    """

    product: Factor | Kronecker | Hadamard
    """Change of the file's layer, [outputs, inputs * window]."""
    rows: slice | np.ndarray
    """Outputs of the file's layer that belong to this layer."""
    shape: KernelShape
    rank: int
    """Upper bound of the rank, from the sizes of the file's arrays."""
    scale: float = 1.0
    bias: StoredArray | None = None
    bias_scale: float = 1.0
    magnitude: Magnitude | None = None

    def kernel(self) -> np.ndarray:
        """Return the change of the kernel without `scale`, [*window, in, out] in float32."""
        matrix = self.product.matrix()[self.rows]
        shape = (self.shape.out_features, self.shape.in_features, *self.shape.window)
        return np.moveaxis(matrix.reshape(shape), (0, 1), (-1, -2))


LayerChange = LowRank | Composed
Changes = Mapping[LayerPosition, LayerChange]


@dataclass(frozen=True)
class Adapter:
    """Changes that one adapter makes to a model's networks, by layer."""

    networks: Mapping[str, Changes]
    """Changes by network name in the pipeline's weights; each is non-empty."""
    ignored: tuple[str, ...] = ()
    """Keys of the file without effect, as in diffusers."""

    @property
    def rank(self) -> int:
        """Highest rank of the adapter's layers."""
        return max(change.rank for change in self._changes())

    @property
    def has_magnitudes(self) -> bool:
        """Return whether any layer has the magnitudes of its vectors (DoRA)."""
        return any(change.magnitude is not None for change in self._changes())

    @property
    def pages(self) -> int:
        """Number of bank pages that the adapter occupies."""
        return pages_of(self.rank, self.has_magnitudes)

    def _changes(self) -> Iterable[LayerChange]:
        return (change for changes in self.networks.values() for change in changes.values())


@dataclass(frozen=True)
class AdapterSummary:
    """Summary of an adapter's file after full validation."""

    rank: int
    """Highest rank of a layer in banks."""
    networks: tuple[str, ...]
    """Names of the changed networks in the pipeline's weights."""
    ignored: tuple[str, ...]
    """Keys of the file without effect, as in diffusers."""
    bytes: int
    """Size of the file."""
    has_magnitudes: bool = False
    """Return whether any layer has the magnitudes of its vectors (DoRA)."""
    is_reduced: bool = False
    """Whether a layer of the file has a higher rank."""
    warnings: tuple[str, ...] = ()
    """Differences between the file and what requests use, for people."""
    vectors: int = 0
    """Tokens that an embedding stands for; 0: the file is no embedding."""
    embeddings: Mapping[str, int] = field(default_factory=dict)
    """Number of vectors of each embedding in an adapter's file, by name."""
