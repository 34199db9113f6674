"""Leaves of a row by name: shardings, replacement, and plain form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from models.interface.pipeline import PyTree
from models.nn.layers.step_cache import CACHE_KEY, RESIDUAL, RESIDUALS
from models.parallel.axis_rules import Axes, Layout

SPLIT: Mapping[str, Axes] = {f"['{CACHE_KEY}']['{name}']": RESIDUAL for name in RESIDUALS}
"""Leaves that a layout may shard between steps; all others are replicated."""


class PlainArray(NamedTuple):
    """Picklable shape and dtype of an abstract array."""

    shape: tuple[int, ...]
    dtype: str


def leaves_by_name(row: PyTree) -> dict[str, Any]:
    """Return a row's leaves by name, in the order of program arguments."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(row)}


def row_shardings(row: PyTree, layout: Layout) -> PyTree:
    """Return the sharding of each leaf of a row."""
    return jax.tree.map(lambda leaf, axes: layout.sharding(axes, leaf.shape), row, axes_of(row))


def axes_of(row: PyTree) -> PyTree:
    """Return the logical axis of each dimension of each leaf."""

    def axes(path: Any, leaf: Any) -> Axes:
        return SPLIT.get(jax.tree_util.keystr(path), (None,) * len(leaf.shape))

    return jax.tree.map_with_path(axes, row)


def with_leaves(row: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree:
    """Return the row with these leaves replaced, on the same devices; other leaves are shared."""

    def chosen(path: Any, old: jax.Array) -> jax.Array:
        new = leaves.get(jax.tree_util.keystr(path))
        return old if new is None else placed(new, old)

    return jax.tree.map_with_path(chosen, row)


def placed(array: np.ndarray, like: jax.Array) -> jax.Array:
    """Place an array with the sharding of `like`; each process of a slice places its own part."""
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])


def as_plain_values(row: PyTree) -> PyTree:
    """Convert a row's abstract arrays to picklable `PlainArray` leaves."""
    return jax.tree.map(lambda leaf: PlainArray(tuple(leaf.shape), np.dtype(leaf.dtype).name), row)


def from_plain_values(values: PyTree) -> PyTree:
    """Convert a row's `PlainArray` leaves to abstract arrays."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        values,
        is_leaf=lambda leaf: isinstance(leaf, PlainArray),
    )


def check_row(program: str, row: PyTree, expected: PyTree) -> None:
    """Verify that a program's row has the shapes and dtypes that other programs expect.

    Raises: TypeError: it differs.
    """
    actual, required = (
        {name: (leaf.shape, leaf.dtype) for name, leaf in leaves_by_name(tree).items()}
        for tree in (row, expected)
    )
    wrong = [key for key in actual | required if actual.get(key) != required.get(key)]
    if wrong:
        details = "; ".join(f"{k}: {actual.get(k)} instead of {required.get(k)}" for k in wrong)
        raise TypeError(f"{program} returns a row of another shape: {details}")
