"""Reduction of changes to low rank by singular value decomposition, with the error that it makes.

The result depends on the file, the rank and the linear algebra library alone.

Source: Eckart and Young 1936, for the closest matrix of a rank; Halko et al. 2011 (Finding
structure with randomness), algorithms 4.4 and 5.1, for large matrices; Van Loan 2000 (The
ubiquitous Kronecker product), for its singular values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from models.adapters.files.adapter import (
    Factor,
    Kronecker,
    LayerChange,
    LowRank,
    StoredArray,
)

DIRECT = 640
"""Longest shorter side of matrices that are decomposed directly."""
OVERSAMPLED = 16
"""Random vectors in addition to the rank, for large matrices."""
ITERATIONS = 2
"""Power iterations for large matrices."""
SEED = 0
BLOCK_ROWS = 1024
"""Rows of a large matrix that are in memory at a time."""

Blocks = Callable[[], Iterator[np.ndarray]]
"""Function that yields the rows of a matrix, `BLOCK_ROWS` at a time."""


class Decomposition(NamedTuple):
    """Largest singular values of a matrix, with their vectors, in float32."""

    left: np.ndarray
    """[rows, rank]."""
    values: np.ndarray
    """[rank], descending."""
    right: np.ndarray
    """[rank, columns]."""
    squared: float
    """Sum of the squares of all values: the matrix's squared size."""

    def first(self, rank: int) -> Decomposition:
        """Return the decomposition truncated to at most `rank` singular values."""
        return Decomposition(
            self.left[:, :rank], self.values[:rank], self.right[:rank], self.squared
        )

    @property
    def lost(self) -> float:
        """Squared Frobenius norm of what the truncation dropped."""
        return max(0.0, self.squared - float(np.square(self.values, dtype=np.float64).sum()))


class Loss(NamedTuple):
    """Squared norms of an adapter's changes, and of what the reduction of their rank drops."""

    squared: float = 0.0
    lost: float = 0.0

    @property
    def error(self) -> float:
        """Relative error of the reduction: norm of what it drops, divided by the changes' norm."""
        return math.sqrt(self.lost / self.squared) if self.squared else 0.0

    def plus(self, other: Loss) -> Loss:
        """Return the sum of two losses of rank reduction."""
        return Loss(self.squared + other.squared, self.lost + other.lost)


def low_rank(change: LayerChange, max_rank: int) -> tuple[LowRank, Loss]:
    """Return the closest change of at most `max_rank`, and the loss of that reduction.

    A low-rank change of at most that rank is returned as it is.
    """
    if isinstance(change, LowRank) and change.rank <= max_rank:
        return change, Loss()
    closest = _decomposed(change, max_rank)
    roots = np.sqrt(closest.values)
    up, down = closest.left * roots, roots[:, None] * closest.right
    if isinstance(change, LowRank):
        inputs = change.down.shape[1:]
    else:
        up, inputs = up[change.rows], (change.shape.in_features, *change.shape.window)
    result = LowRank(
        StoredArray(down.reshape(-1, *inputs)),
        StoredArray(up),
        change.scale,
        change.bias,
        change.bias_scale,
        change.magnitude,
    )
    return result, Loss(change.scale**2 * closest.squared, change.scale**2 * closest.lost)


def _decomposed(change: LayerChange, rank: int) -> Decomposition:
    if isinstance(change, LowRank):
        return _of_product(change.up.float32(), _flat(change.down.float32()), rank)
    product = change.product
    if isinstance(product, Factor):
        matrix = product.matrix()
        return _with_identity(matrix) if min(matrix.shape) <= rank else _of_matrix(matrix, rank)
    if isinstance(product, Kronecker):
        return _of_kronecker(product, rank)
    (up, down), (more_up, more_down) = (_as_pair(part) for part in (product.left, product.right))
    if up.shape[1] * more_up.shape[1] <= min(2 * rank, DIRECT):
        columns = (up[:, :, None] * more_up[:, None]).reshape(len(up), -1)
        return _of_product(columns, (down[:, None] * more_down).reshape(-1, down.shape[1]), rank)

    def blocks() -> Iterator[np.ndarray]:
        for rows in _parts(len(up)):
            yield (up[rows] @ down) * (more_up[rows] @ more_down)

    return _of_large(blocks, down.shape[1], rank)


def _as_pair(factor: Factor) -> tuple[np.ndarray, np.ndarray]:
    """Return two matrices whose product is a LoHa factor, which files never store as a whole."""
    numbers = [array.float32() for array in factor.arrays]
    if len(numbers) == 2:
        return _flat(numbers[0]), _flat(numbers[1])
    core, a, b = numbers
    inner = np.einsum("ij...,jc->ic...", core, _flat(b), optimize=True)
    return _flat(a).T, _flat(inner)


def _with_identity(matrix: np.ndarray) -> Decomposition:
    """Factor a matrix without rounding: the matrix and the identity."""
    ones = np.ones(min(matrix.shape), np.float32)
    left, right = (np.diag(ones), matrix) if len(ones) == len(matrix) else (matrix, np.diag(ones))
    return Decomposition(left, ones, right, float(len(ones)))


def _of_kronecker(product: Kronecker, rank: int) -> Decomposition:
    """Decompose a Kronecker product: its singular values are the products of its factors'."""
    first, second = (_of_matrix(part.matrix(), rank) for part in (product.left, product.right))
    products = np.outer(first.values, second.values).ravel()
    chosen = np.argsort(-products, kind="stable")[:rank]
    row, column = np.divmod(chosen, len(second.values))
    left = first.left[:, None, row] * second.left[None, :, column]
    right = first.right[row, :, None] * second.right[column, None, :]
    return Decomposition(
        left.reshape(-1, len(chosen)),
        products[chosen],
        right.reshape(len(chosen), -1),
        first.squared * second.squared,
    )


def _of_product(up: np.ndarray, down: np.ndarray, rank: int) -> Decomposition:
    """Decompose a product whose inner side is short, by the triangular parts of its factors."""
    if min(up.shape[1], *up.shape, *down.shape) > DIRECT:
        return _of_large(lambda: (up[rows] @ down for rows in _parts(len(up))), down.shape[1], rank)
    (left, upper), (right, lower) = np.linalg.qr(up), np.linalg.qr(down.T)
    inner = _of_matrix(upper @ lower.T, rank)
    return inner._replace(left=left @ inner.left, right=inner.right @ right.T)


def _of_matrix(matrix: np.ndarray, rank: int) -> Decomposition:
    if min(matrix.shape) > max(DIRECT, 2 * rank):
        return _of_large(
            lambda: (matrix[rows] for rows in _parts(len(matrix))), matrix.shape[1], rank
        )
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    squared = float(np.square(values, dtype=np.float64).sum())
    return Decomposition(left, values, right, squared).first(rank)


def _of_large(blocks: Blocks, columns: int, rank: int) -> Decomposition:
    """Approximate the largest singular values of a large matrix by random projection."""
    random = np.random.RandomState(SEED).standard_normal((columns, rank + OVERSAMPLED))
    base = _span(block @ random.astype(np.float32) for block in blocks())
    for _ in range(ITERATIONS):
        other, _ = np.linalg.qr(_back(blocks, base).T)
        base = _span(block @ other for block in blocks())
    squared = sum(float(np.square(block, dtype=np.float64).sum()) for block in blocks())
    inner, values, right = np.linalg.svd(_back(blocks, base), full_matrices=False)
    return Decomposition(base @ inner, values, right, squared).first(rank)


def _span(parts: Iterator[np.ndarray]) -> np.ndarray:
    """Return an orthonormal basis of a matrix's column space."""
    base, _ = np.linalg.qr(np.concatenate([*parts]))
    return base


def _back(blocks: Blocks, base: np.ndarray) -> np.ndarray:
    """Return the transpose of `base` times the matrix."""
    parts = zip(_parts(len(base)), blocks(), strict=True)
    return sum((base[rows].T @ block for rows, block in parts), np.zeros(()))


def _parts(rows: int) -> Iterator[slice]:
    return (slice(first, first + BLOCK_ROWS) for first in range(0, rows, BLOCK_ROWS))


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)
