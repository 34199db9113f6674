"""Abstract arguments of a slice's programs: shapes, dtypes and shardings."""

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
    """Argument shapes, dtypes and shardings for tracing one pipeline's programs on a slice.

    Inputs are replicated; rows too, except the leaves of a step cache. Weights keep the sharding
    they were loaded with; swapped networks have the layout's. On GPUs, stacks of layers are split
    (unstack.py).

    Args:
        layout: how the slice partitions the work.
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
        """Abstract arrays for `weights.common`."""
        self._tree = pipeline.weights

    def of(self, tree: PyTree) -> PyTree:
        """Return the tree's leaves as abstract arrays; leaves without a sharding are replicated."""
        return jax.tree.map(self._leaf, tree)

    def row(self, row: PyTree) -> PyTree:
        """Return a row as abstract arrays, independent of the layout of its next step."""
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self.of(row),
            self.row_shardings(row),
        )

    def row_shardings(self, row: PyTree) -> PyTree:
        """Return the sharding of each leaf of a row."""
        return row_shardings(row, self.layout)

    def columns(self, values: Values, size: int) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Return abstract float32 values of `size` steps or rows, with a leading axis.

        Args:
            values: values of one step, for their names and shapes.
        """
        return {
            name: jax.ShapeDtypeStruct((size, *value.shape), np.float32, sharding=self.replicated)
            for name, value in values.items()
        }

    def stay_under(self, other: Layout) -> bool:
        """Return whether another mesh layout gives every weight its current sharding."""
        pairs = zip(
            jax.tree.leaves(self._tree),
            *(weight_shardings(layout, self._tree) for layout in (self.layout, other)),
            strict=True,
        )
        return all(current.is_equivalent_to(changed, leaf.ndim) for leaf, current, changed in pairs)

    def _leaf(self, leaf: Any, place: Sharding | None = None) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None) or place or self.replicated
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)


def weight_shardings(layout: Layout, weights: PyTree) -> list[Sharding]:
    """Return each array's sharding under a layout; arrays without named axes are replicated."""
    replicated = NamedSharding(layout.mesh, PartitionSpec())

    def place(leaf: Any) -> Any:
        if isinstance(leaf, nnx.Variable):
            return leaf.replace(layout.of_parameter("", leaf))
        return replicated

    tree = jax.tree.map(place, weights, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return jax.tree.leaves(tree)
