"""Copy of a loaded pipeline with its weights placed by another layout."""

from __future__ import annotations

import copy

import jax
from flax import nnx

from models.interface.pipeline import Pipeline
from models.parallel.axis_rules import Layout


def placed(pipeline: Pipeline, layout: Layout) -> Pipeline:
    """Copy the pipeline and place each parameter where the layout assigns it."""
    moved = copy.copy(pipeline)
    moved.weights = type(pipeline.weights)(
        *(None if state is None else _moved(state, layout) for state in pipeline.weights)
    )
    return moved


def _moved(state: nnx.State, layout: Layout) -> nnx.State:
    def move(leaf: nnx.Variable) -> nnx.Variable:
        return leaf.replace(jax.device_put(leaf[...], layout.of_parameter("", leaf)))

    return jax.tree.map(move, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
