"""Stacks of equal layers: parameters stacked on a leading axis, run by a scan.

One layer is traced and compiled for any depth, so a full-size model compiles in seconds. A stacked
leaf has the path of the single layer's leaf and a leading axis named "layers". During a trace it
may instead be a tuple with one array per layer: the layers are then unrolled
(`workers.programs.unstack`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.nn.layers.adapter_bank import is_of_bank
from models.nn.quant.sharded import is_read_in_place, of_layer
from models.parallel.placement import cast_in_place, gather_for_use
from models.parallel.trace_options import trace_options

Layer = TypeVar("Layer", bound=nnx.Module)
Carry = TypeVar("Carry")
Result = TypeVar("Result")


def stack(make: Callable[..., Layer], layers: int, *, rngs: nnx.Rngs, **kinds: Any) -> Layer:
    """Build `layers` layers, each with random parameters of its own, as one module.

    Args:
        make: builds one layer from its `rngs` and `kinds`.
        kinds: further arguments of every layer.
    """
    keys = jax.random.split(rngs.params(), layers)
    stacked = nnx.vmap(lambda key: make(rngs=type(rngs)(key), **kinds))(keys)
    for _, node in nnx.iter_graph(stacked):
        if isinstance(node, nnx.Param):
            node.set_metadata(axes=("layers", *node.axes))
    return stacked


def stack_any(make: Callable[..., Layer], layers: int, **kinds: Any) -> Layer | None:
    """Build a stack as `stack`, or None without layers: a checkpoint may lack a kind of block."""
    return stack(make, layers, **kinds) if layers else None


def layers_of(stacked: nnx.Module) -> int:
    """Return the number of layers of a stacked module."""
    state = nnx.state(stacked, nnx.Param)
    leaves = jax.tree.leaves(state, is_leaf=is_variable)
    return len(leaves[0].get_value())


def scan(
    layers: nnx.Module,
    carry: Carry,
    apply: Callable[..., Carry],
    *of_layers: Any,
    between: tuple[int, int] | None = None,
    first: jax.Array | None = None,
) -> tuple[Carry, Carry]:
    """Run stacked layers in order: carry = apply(layer, carry, *inputs of this layer).

    Returns the last carry and, stacked on a leading axis, the carry that each layer received.

    Args:
        of_layers: further inputs of the layers, stacked on a leading axis.
        between: first layer to run, and layer to stop before; None: all.
        first: layer that `between` counts from, in a scan inside another; None: 0.
    """
    graph, *states = nnx.split(layers, _is_read_from_stack, ...)
    whole, parameters = states

    def body(carry: Carry, inputs: Any) -> tuple[Carry, Carry]:
        number, layer, *others = inputs
        in_stacks = whole if number is None else of_layer(whole, number)
        merged = nnx.merge(graph, in_stacks, gather_for_use(layer))
        return apply(merged, carry, *others), carry

    def numbered(carry: Carry, number: jax.Array) -> tuple[Carry, Carry]:
        inputs = jax.tree.map(lambda leaf: at(leaf, number), stacked)
        return body(carry, (number, *inputs))

    has_whole, separate = bool(jax.tree.leaves(whole)), _are_separate(parameters)
    numbers, stacked = jnp.arange(*(between or (0, layers_of(layers)))), (parameters, *of_layers)
    if first is not None:
        if separate:
            stacked = (_together(parameters, slice(None)), *of_layers)
        unroll = separate or trace_options().unroll
        return jax.lax.scan(numbered, carry, first + numbers, unroll=unroll)
    if separate:
        some = slice(*(between or (None,)))
        cut = jax.tree.map(lambda leaf: leaf[some], of_layers)
        inputs = (numbers if has_whole else None, _together(parameters, some), *cut)
        return jax.lax.scan(body, carry, inputs, unroll=True)
    if between is None and not has_whole:
        return jax.lax.scan(body, carry, (None, *stacked), unroll=trace_options().unroll)
    # read from the whole stack: slicing it would copy the weights
    return jax.lax.scan(numbered, carry, numbers, unroll=trace_options().unroll)


def run(
    layers: nnx.Module | None,
    carry: Carry,
    apply: Callable[..., Carry],
    *of_layers: Any,
    first: int = 0,
    stop: int | None = None,
) -> Carry:
    """Run stacked layers from `first` up to `stop`, exclusive; other arguments are those of `scan`.

    Without any layer the carry is returned unchanged.
    """
    if layers is None:
        return carry
    between = (first, stop or layers_of(layers)) if first or stop else None
    return scan(layers, carry, apply, *of_layers, between=between)[0]


def _is_read_from_stack(path: tuple[Any, ...], leaf: Any) -> bool:
    """Return whether a layer reads its slice of a leaf directly from the whole stack."""
    return is_read_in_place(path, leaf) or is_of_bank(path, leaf)


def is_variable(node: Any) -> bool:
    """Return whether a node is an nnx variable."""
    return isinstance(node, nnx.Variable)


def _are_separate(parameters: Any) -> bool:
    """Return whether stacked parameters are tuples with one array per layer."""
    leaves = jax.tree.leaves(parameters, is_leaf=is_variable)
    return any(isinstance(leaf.get_value(), tuple) for leaf in leaves)


def _together(parameters: Any, some: slice) -> Any:
    """Stack the separate arrays of these layers.

    No compiled program makes a copy: unrolled layers each read their own array.
    """

    def stack(leaf: nnx.Variable[Any]) -> nnx.Variable[Any]:
        value = leaf.get_value()[some]
        return leaf.replace(jnp.stack(value) if isinstance(value, tuple) else value)

    return jax.tree.map(stack, parameters, is_leaf=is_variable)


def at(leaf: jax.Array, number: jax.Array) -> jax.Array:
    """Slice the parameter of one layer out of a stacked leaf."""
    layer: jax.Array = jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False)
    return layer


def each(layers: nnx.Module, apply: Callable[[Any], Result]) -> Result:
    """Apply each stacked layer to the same input; stack the results on a leading axis.

    For few vectors and wide layers: parameters stay where they are, and the results are sent.
    """
    graph, parameters = nnx.split(layers)

    def body(_: None, layer: Any) -> tuple[None, Result]:
        return None, apply(nnx.merge(graph, cast_in_place(layer)))

    results: Result = jax.lax.scan(body, None, parameters, unroll=trace_options().unroll)[1]
    return results
