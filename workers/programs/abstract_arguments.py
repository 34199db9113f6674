"""Abstract arguments: shapes, dtypes and places of what a slice's programs are called with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from models.interface.pipeline import Pipeline, PyTree
from models.parallel.axis_rules import Layout
from workers.programs.bucket_programs import Values
from workers.programs.device_weights import Weights
from workers.programs.row_tree import row_shardings
from workers.programs.unstack import stacks


class AbstractArguments:
    """Arguments of programs as they lie on a slice.

    Inputs whole on each of its devices, and rows but for what a step cache keeps; weights where
    they were loaded, and swapped networks where the layout has them. On a GPU stacks come apart
    (unstack.py).

    Args:
        layout: how the slice splits its work.
    """

    def __init__(self, pipeline: Pipeline, layout: Layout) -> None:
        self.layout = layout
        self.replicated = NamedSharding(layout.mesh, PartitionSpec())
        shardings = weight_shardings(layout, pipeline.weights)
        self.weights = Weights(
            pipeline.spec.name, pipeline.weights, shardings, stacks(pipeline, layout)
        )
        self.abstract_weights = [
            self.of(leaf) if isinstance(leaf, tuple) else self._leaf(leaf, sharding)
            for leaf, sharding in zip(self.weights.common, shardings, strict=True)
        ]
        """Abstract form of `weights.common`."""
        self._tree = pipeline.weights

    def of(self, tree: PyTree) -> PyTree:
        """Return the tree's leaves as abstract arrays; those without a place lie on each device."""
        return jax.tree.map(self._leaf, tree)

    def row(self, row: PyTree) -> PyTree:
        """Return a row as abstract arrays, whatever the layout of its next step."""
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            self.of(row),
            self.row_shardings(row),
        )

    def row_shardings(self, row: PyTree) -> PyTree:
        """Return the sharding of each leaf of a row."""
        return row_shardings(row, self.layout)

    def columns(self, values: Values, size: int) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Return the values of so many steps, or rows: float32, with a leading axis.

        Args:
            values: one step's, for their names and shapes.
        """
        return {
            name: jax.ShapeDtypeStruct((size, *one.shape), np.float32, sharding=self.replicated)
            for name, one in values.items()
        }

    def stay_under(self, other: Layout) -> bool:
        """Return whether every weight lies where it does now under another layout, too."""
        pairs = zip(
            jax.tree.leaves(self._tree),
            *(weight_shardings(layout, self._tree) for layout in (self.layout, other)),
            strict=True,
        )
        return all(mine.is_equivalent_to(theirs, leaf.ndim) for leaf, mine, theirs in pairs)

    def _leaf(self, leaf: Any, place: Sharding | None = None) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None) or place or self.replicated
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)


def weight_shardings(layout: Layout, weights: PyTree) -> list[Sharding]:
    """Return where a layout has each array; what names no axes lies whole on each device."""
    whole = NamedSharding(layout.mesh, PartitionSpec())

    def place(leaf: Any) -> Any:
        if isinstance(leaf, nnx.Variable):
            return leaf.replace(layout.of_parameter("", leaf))
        return whole

    tree = jax.tree.map(place, weights, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return jax.tree.leaves(tree)
