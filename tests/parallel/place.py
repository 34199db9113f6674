"""A pipeline that is loaded already, with its weights laid out anew."""

from __future__ import annotations

import copy

import jax
from flax import nnx

from models.interface.pipeline import Pipeline
from models.parallel.axis_rules import Layout


def placed(pipeline: Pipeline, layout: Layout) -> Pipeline:
    """The same model; each parameter lies where the layout has it."""
    moved = copy.copy(pipeline)
    moved.weights = type(pipeline.weights)(
        *(None if state is None else _moved(state, layout) for state in pipeline.weights)
    )
    return moved


def _moved(state: nnx.State, layout: Layout) -> nnx.State:
    def move(leaf: nnx.Variable) -> nnx.Variable:
        return leaf.replace(jax.device_put(leaf[...], layout.of_parameter("", leaf)))

    return jax.tree.map(move, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
