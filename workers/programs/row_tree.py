"""The leaves of a row by their names, and rows with other ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from models.interface.pipeline import PyTree
from models.nn.layers.step_cache import KEPT, RESIDUAL, RESIDUALS
from models.parallel.axis_rules import Axes, Layout

SPLIT: Mapping[str, Axes] = {f"['{KEPT}']['{name}']": RESIDUAL for name in RESIDUALS}
"""Leaves that a layout may split between steps; all others lie whole on each device."""


class PlainArray(NamedTuple):
    """An abstract array as plain values, which can be pickled."""

    shape: tuple[int, ...]
    dtype: str


def leaves_by_name(row: PyTree) -> dict[str, Any]:
    """Return leaves by name, in the order in which programs take them."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(row)}


def row_shardings(row: PyTree, layout: Layout) -> PyTree:
    """Return the sharding of each leaf of a row."""
    return jax.tree.map(lambda leaf, axes: layout.sharding(axes, leaf.shape), row, axes_of(row))


def axes_of(row: PyTree) -> PyTree:
    """Return, for each leaf, the logical axis of each of its dimensions."""

    def axes(path: Any, leaf: Any) -> Axes:
        return SPLIT.get(jax.tree_util.keystr(path), (None,) * len(leaf.shape))

    return jax.tree.map_with_path(axes, row)


def with_leaves(row: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree:
    """The row with these in place of its own, on the same devices; its other leaves are shared."""

    def chosen(path: Any, own: jax.Array) -> jax.Array:
        new = leaves.get(jax.tree_util.keystr(path))
        return own if new is None else placed(new, own)

    return jax.tree.map_with_path(chosen, row)


def placed(array: np.ndarray, like: jax.Array) -> jax.Array:
    """Place an array as `like` lies; each process of a slice places its own part."""
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])


def as_plain_values(row: PyTree) -> PyTree:
    """Return abstract arrays as plain values."""
    return jax.tree.map(lambda leaf: PlainArray(tuple(leaf.shape), np.dtype(leaf.dtype).name), row)


def from_plain_values(values: PyTree) -> PyTree:
    """Return such values as abstract arrays."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        values,
        is_leaf=lambda leaf: isinstance(leaf, PlainArray),
    )


def check_row(program: str, row: PyTree, expected: PyTree) -> None:
    """Check that a program's row goes on where the others do.

    Raises: TypeError: the program's row could not go on where the others do.
    """
    found, wanted = (
        {name: (leaf.shape, leaf.dtype) for name, leaf in leaves_by_name(tree).items()}
        for tree in (row, expected)
    )
    wrong = [key for key in found | wanted if found.get(key) != wanted.get(key)]
    if wrong:
        details = "; ".join(f"{k}: {found.get(k)} instead of {wanted.get(k)}" for k in wrong)
        raise TypeError(f"{program} returns a row of another shape: {details}")
