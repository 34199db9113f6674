"""Placement of parameters and activations by the layout of the current trace (trace_options.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx
from jax.sharding import NamedSharding

from models.parallel.axis_rules import Split
from models.parallel.dtypes import used_dtype
from models.parallel.row_adapters import AdapterPages
from models.parallel.trace_options import trace_options

State = TypeVar("State")


def gather_for_use(parameters: State) -> State:
    """Return parameters ready for use by a layer.

    Parameters are gathered if only their storage is split, moved from host memory to the device,
    and cast to the dtype of their use.

    Stacked layers are unchanged: each is gathered before it runs. Banks of adapters are unchanged
    too, because rows gather their pages.
    """
    layout = trace_options().layout
    used = None if layout is None else layout.in_use()

    def prepared(leaf: nnx.Variable[Any]) -> nnx.Variable[Any]:
        if _is_separate(leaf) or isinstance(leaf, AdapterPages):
            return leaf
        axes = leaf.axes[-leaf.ndim :] if leaf.ndim else ()
        if "layers" in axes:
            return leaf
        value, dtype = leaf[...], used_dtype(leaf)
        if dtype.itemsize < value.dtype.itemsize:
            value = value.astype(dtype)  # before it is sent
        if used is not None:
            value = _moved(value, used.sharding(axes, leaf.shape))
        return leaf.replace(value.astype(dtype))

    in_use: State = jax.tree.map(
        prepared, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    return in_use


def cast_in_place(parameters: State) -> State:
    """Cast parameters to the dtype of their use without moving them.

    For products of few vectors, where results are less to send than weights.
    """

    def used(leaf: nnx.Variable[Any]) -> nnx.Variable[Any]:
        if _is_separate(leaf):
            return leaf
        return leaf.replace(leaf[...].astype(used_dtype(leaf)))

    cast: State = jax.tree.map(
        used, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    return cast


def in_memory(
    order: Callable[[jax.Array], jax.Array], x: jax.Array, parameter: nnx.Variable[Any]
) -> jax.Array:
    """Order an array's memory on each device.

    Uses `shard_map`: XLA's partitioner would gather a parameter whose memory has constraints.

    Args:
        order: constrains the memory of an array, which it returns.
        x: value of the parameter, gathered, of one layer.
    """
    layout = trace_options().layout
    if layout is None:
        return order(x)
    if layout.platform is None:  # only shapes, without memory
        return x
    spec = layout.in_use().spec(parameter.axes[-x.ndim :], x.shape)
    by_device = jax.shard_map(
        order, mesh=layout.mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    ordered: jax.Array = by_device(x)
    return ordered


def _is_separate(leaf: nnx.Variable[Any]) -> bool:
    """Return whether a stacked parameter is a tuple with an array per layer."""
    return isinstance(leaf.get_value(), tuple)


def _moved(value: jax.Array, place: NamedSharding) -> jax.Array:
    """Move an array, possibly from host memory, to a sharding."""
    if jax.typeof(value).memory_space == jax.memory.Space.Host:
        moved: jax.Array = jax.device_put(value, place)
    else:
        moved = jax.lax.with_sharding_constraint(value, place)
    return moved


def split(x: jax.Array, *axes: str | None) -> jax.Array:
    """Split an activation by its logical axes; without a layout return it unchanged."""
    options = trace_options()
    layout = options.layout
    if layout is None:
        return x
    if options.record is not None:
        where, over = sys._getframe(1).f_code.co_qualname, layout.split(axes, x.shape)
        options.record(Split(where, axes, x.shape, str(x.dtype), over))
    constrained: jax.Array = jax.lax.with_sharding_constraint(x, layout.sharding(axes, x.shape))
    return constrained
