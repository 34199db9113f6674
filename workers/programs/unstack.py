"""Stacks of layers as one array a layer, for GPUs.

A loop over a stack takes each layer's kernels out of it, and XLA's products on a GPU read no part
of an array in such a loop: all of a network's weights are copied in each step (jax 0.10.2). With an
array for each layer, and one layer behind the other, products read them where they lie. That is a
twelfth of an image's step. Of a video's, whose tokens are many more, it is three thousandths: its
layers stay in a loop.
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
"""Kinds of memory that a product reads from."""


def stacks(pipeline: Pipeline, layout: Layout) -> list[bool]:
    """Return, of each leaf of its weights, whether its layers are to be apart.

    Kernels of denoising blocks are, on GPUs.

    Not what is split over devices where it is stored, whose layers are brought together one at a
    time; nor what comes from the host; nor banks of adapters, of which rows take their pages.
    """
    pays = is_wanted(layout) and pipeline.spec.limits.max_frames == 1

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, nnx.Variable) or isinstance(leaf, AdapterPages):
            return False
        wanted = pays and leaf.ndim > 2 and "embed" in leaf.axes
        wanted = wanted and is_of_blocks(leaf.axes) and _is_on_device(leaf.get_value())
        return leaf.replace(wanted)

    return jax.tree.leaves(
        jax.tree.map(one, pipeline.weights, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    )


def is_of_blocks(axes: Axes) -> bool:
    """Return whether tokens are multiplied with a kernel: stacked, and none of modulations."""
    return "layers" in axes and "modulation" not in axes


def is_wanted(layout: Layout) -> bool:
    """Return whether to unstack: on GPUs that each hold just what their products read."""
    return layout.platform == "gpu" and layout.size("embed") == 1


_apart: dict[int, tuple[Any, ...]] = {}
"""Layers of stacks that were split, by the stack's identity while somebody holds it: networks that
share a stack share its layers."""


def unstack(stack: Any) -> tuple[Any, ...]:
    """Split a stack into an array a layer, and free it; an abstract one stays abstract.

    One that was split before has the layers of then.
    """
    if isinstance(stack, jax.ShapeDtypeStruct):
        place = _of_layer(stack.sharding, stack.ndim)
        layer = jax.ShapeDtypeStruct(stack.shape[1:], stack.dtype, sharding=place)
        return (layer,) * len(stack)
    if id(stack) not in _apart:
        _apart[id(stack)] = _split(stack)
        weakref.finalize(stack, _apart.pop, id(stack))
    return _apart[id(stack)]


def _split(stack: jax.Array) -> tuple[jax.Array, ...]:
    places = (_of_layer(stack.sharding, stack.ndim),) * len(stack)
    layers: tuple[jax.Array, ...] = jax.block_until_ready(
        jax.jit(lambda stack: tuple(stack), out_shardings=places)(stack)
    )
    stack.delete()  # not left to whoever else may still hold a reference
    return layers


def _of_layer(place: Sharding, axes: int) -> Sharding:
    """Return the sharding of a layer of a stack."""
    if not isinstance(place, NamedSharding):
        return place
    over = (*place.spec, *[None] * (axes - len(place.spec)))
    return NamedSharding(place.mesh, PartitionSpec(*over[1:]))


def _is_on_device(value: Any) -> bool:
    kind = getattr(getattr(value, "sharding", None), "memory_kind", None)
    return not isinstance(value, np.ndarray) and kind in DEVICE
