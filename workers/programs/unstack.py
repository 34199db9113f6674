"""Split stacked layers into one array per layer, for GPUs.

A loop over a stack slices each layer's kernels. In a loop, XLA's GPU products cannot read a part of
an array, so every step copies all of a network's weights (jax 0.10.2). With one array per layer and
an unrolled loop, products read them in place. That saves a twelfth of an image's step. For a video,
which has many more tokens, it is three thousandths, so its layers stay in a loop.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from models.interface.pipeline import Pipeline
from models.nn.layers.parameterised import Axes
from models.parallel.axis_rules import Layout
from models.parallel.row_adapters import AdapterPages

DEVICE = (None, "device")
"""Memory kinds that matrix products on a GPU can read."""


def stacks(pipeline: Pipeline, layout: Layout) -> list[bool]:
    """Return, for each leaf of the weights, whether to split its layers.

    Kernels of denoising blocks are split on GPUs. Excluded are stacks sharded over devices in
    storage, whose layers are gathered one at a time; host arrays; and adapter banks, whose pages
    rows index.
    """
    pays = should_unstack(layout) and pipeline.spec.limits.max_frames == 1

    def is_unstacked(leaf: Any) -> Any:
        if not isinstance(leaf, nnx.Variable) or isinstance(leaf, AdapterPages):
            return False
        wanted = pays and leaf.ndim > 2 and "embed" in leaf.axes
        wanted = wanted and is_of_blocks(leaf.axes) and _is_on_device(leaf.get_value())
        return leaf.replace(wanted)

    return jax.tree.leaves(
        jax.tree.map(
            is_unstacked, pipeline.weights, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
        )
    )


def is_of_blocks(axes: Axes) -> bool:
    """Return whether a kernel multiplies tokens: stacked, and not for modulations."""
    return "layers" in axes and "modulation" not in axes


def should_unstack(layout: Layout) -> bool:
    """Return whether a layout's GPUs each hold exactly the weights that their products read."""
    return layout.platform == "gpu" and layout.size("embed") == 1


_layers_by_stack: dict[int, tuple[Any, ...]] = {}
"""Layers of split stacks, by the stack's identity while it is alive: networks that share a stack
share its layers."""


def unstack(stack: Any) -> tuple[Any, ...]:
    """Split a stack into one array per layer, and free it; an abstract stack stays abstract.

    A stack that was split before returns the same layers.
    """
    if isinstance(stack, jax.ShapeDtypeStruct):
        sharding = _of_layer(stack.sharding, stack.ndim)
        layer = jax.ShapeDtypeStruct(stack.shape[1:], stack.dtype, sharding=sharding)
        return (layer,) * len(stack)
    if id(stack) not in _layers_by_stack:
        _layers_by_stack[id(stack)] = _split(stack)
        weakref.finalize(stack, _layers_by_stack.pop, id(stack))
    return _layers_by_stack[id(stack)]


def _split(stack: jax.Array) -> tuple[jax.Array, ...]:
    shardings = (_of_layer(stack.sharding, stack.ndim),) * len(stack)
    layers: tuple[jax.Array, ...] = jax.block_until_ready(
        jax.jit(lambda stack: tuple(stack), out_shardings=shardings)(stack)
    )
    stack.delete()  # freed even if still referenced elsewhere
    return layers


def _of_layer(sharding: Sharding, axes: int) -> Sharding:
    """Return the sharding of one layer of a stacked weight."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    over = (*sharding.spec, *[None] * (axes - len(sharding.spec)))
    return NamedSharding(sharding.mesh, PartitionSpec(*over[1:]))


def _is_on_device(value: Any) -> bool:
    kind = getattr(getattr(value, "sharding", None), "memory_kind", None)
    return not isinstance(value, np.ndarray) and kind in DEVICE
