"""Place parameters and activations by the layout of the current trace (trace_options.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import jax
from flax import nnx
from jax.sharding import NamedSharding

from models.parallel.axis_rules import Split
from models.parallel.dtypes import used_dtype
from models.parallel.row_adapters import AdapterPages
from models.parallel.trace_options import trace_options

State = TypeVar("State")


def gathered(parameters: State) -> State:
    """Return parameters as layers use them.

    Gathered where only their storage is split, moved from host memory to the device, and cast to
    the dtype that they are used in.

    Stacked layers stay as they are: each is gathered when its turn comes. So do banks of adapters,
    of which rows take their pages.
    """
    layout = trace_options().layout
    used = None if layout is None else layout.in_use()

    def whole(leaf: nnx.Variable) -> nnx.Variable:
        if _is_separate(leaf) or isinstance(leaf, AdapterPages):
            return leaf
        axes = leaf.axes[-leaf.ndim :] if leaf.ndim else ()
        if "layers" in axes:
            return leaf
        value, dtype = leaf[...], used_dtype(leaf)
        if dtype.itemsize < value.dtype.itemsize:
            value = value.astype(dtype)  # before it is sent
        if used is not None:
            value = _brought(value, used.sharding(axes, leaf.shape))
        return leaf.replace(value.astype(dtype))

    return jax.tree.map(whole, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def in_place(parameters: State) -> State:
    """Return parameters where they lie, cast to the dtype that they are used in.

    For products of few vectors, whose results are less to send than the weights.
    """

    def used(leaf: nnx.Variable) -> nnx.Variable:
        if _is_separate(leaf):
            return leaf
        return leaf.replace(leaf[...].astype(used_dtype(leaf)))

    return jax.tree.map(used, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def in_memory(
    order: Callable[[jax.Array], jax.Array], x: jax.Array, parameter: nnx.Variable
) -> jax.Array:
    """Return an array with its memory ordered on each device.

    By `shard_map`: XLA's partitioner would gather a parameter whose memory has constraints.

    Args:
        order: constrains the memory of an array, which it returns.
        x: value of the parameter, gathered, of one layer.
    """
    layout = trace_options().layout
    if layout is None:
        return order(x)
    if layout.platform is None:  # there is no memory, only shapes
        return x
    spec = layout.in_use().spec(parameter.axes[-x.ndim :], x.shape)
    by_device = jax.shard_map(
        order, mesh=layout.mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    ordered: jax.Array = by_device(x)
    return ordered


def _is_separate(leaf: nnx.Variable) -> bool:
    """Return True for an array per layer, which `models.nn.layers.scanned` places one by one."""
    return isinstance(leaf.get_value(), tuple)


def _brought(value: jax.Array, place: NamedSharding) -> jax.Array:
    """Move an array to its place, from host memory too."""
    if jax.typeof(value).memory_space == jax.memory.Space.Host:
        return jax.device_put(value, place)
    return jax.lax.with_sharding_constraint(value, place)


def split(x: jax.Array, *axes: str | None) -> jax.Array:
    """Split an activation by its logical axes; without a layout it stays as it is."""
    options = trace_options()
    layout = options.layout
    if layout is None:
        return x
    if options.record is not None:
        where, over = sys._getframe(1).f_code.co_qualname, layout.split(axes, x.shape)
        options.record(Split(where, axes, x.shape, str(x.dtype), over))
    return jax.lax.with_sharding_constraint(x, layout.sharding(axes, x.shape))
