"""Equal layers as one: parameters stacked on a leading axis, run by a scan.

One layer is traced and compiled however deep the network, so a full-size model compiles in
seconds. A stacked leaf has the path of the single layer's leaf and one more leading axis, named
"layers". While a program is traced it may have a tuple of arrays instead, one a layer: then layers
are run one behind the other (`workers.programs.unstack`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.nn.layers.adapter_bank import is_of_bank
from models.nn.quant.sharded import of_layer, stays_stacked
from models.parallel.placement import gathered, in_place
from models.parallel.trace_options import trace_options

Layer = TypeVar("Layer", bound=nnx.Module)
Carry = TypeVar("Carry")
Result = TypeVar("Result")


def stack(make: Callable[[nnx.Rngs], Layer], layers: int, rngs: nnx.Rngs) -> Layer:
    """`layers` of what `make` builds, each with its own random parameters, as one module."""
    keys = jax.random.split(rngs.params(), layers)
    stacked = nnx.vmap(lambda key: make(type(rngs)(key)))(keys)
    for _, node in nnx.iter_graph(stacked):
        if isinstance(node, nnx.Param):
            node.set_metadata(axes=("layers", *node.axes))
    return stacked


def layers_of(stacked: nnx.Module) -> int:
    """Return how many layers a stack has."""
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
    """Runs the stacked layers in order: carry = apply(layer, carry, *of this layer).

    Returns the last carry and, stacked on a leading axis, the carry that each layer was given.

    Args:
        of_layers: what else each layer is given, stacked on a leading axis.
        between: the first layer to run and the one to stop at; None: all.
        first: the layer that `between` counts from, in a scan inside another; None: 0.
    """
    graph, *states = nnx.split(layers, _stays_whole, ...)
    whole, parameters = states

    def one(carry: Carry, own: Any) -> tuple[Carry, Carry]:
        number, layer, *others = own
        in_stacks = whole if number is None else of_layer(whole, number)
        merged = nnx.merge(graph, in_stacks, gathered(layer))
        return apply(merged, carry, *others), carry

    def numbered(carry: Carry, number: jax.Array) -> tuple[Carry, Carry]:
        own = jax.tree.map(lambda leaf: at(leaf, number), stacked)
        return one(carry, (number, *own))

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
        own = (numbers if has_whole else None, _together(parameters, some), *cut)
        return jax.lax.scan(one, carry, own, unroll=True)
    if between is None and not has_whole:
        return jax.lax.scan(one, carry, (None, *stacked), unroll=trace_options().unroll)
    # looked up in the whole stack: to cut some of it off would copy the weights
    return jax.lax.scan(numbered, carry, numbers, unroll=trace_options().unroll)


def run(
    layers: nnx.Module | None,
    carry: Carry,
    apply: Callable[..., Carry],
    *of_layers: Any,
    first: int = 0,
    stop: int | None = None,
) -> Carry:
    """Run stacked layers from one on, up to another; arguments as of `scan`.

    Without any layer the carry stays as it is.
    """
    if layers is None:
        return carry
    between = (first, stop or layers_of(layers)) if first or stop else None
    return scan(layers, carry, apply, *of_layers, between=between)[0]


def _stays_whole(path: tuple[Any, ...], leaf: Any) -> bool:
    """Return whether a layer reads its part of a leaf in the whole stack."""
    return stays_stacked(path, leaf) or is_of_bank(path, leaf)


def is_variable(node: Any) -> bool:
    """Return whether a node is an nnx variable."""
    return isinstance(node, nnx.Variable)


def _are_separate(parameters: Any) -> bool:
    """Return whether a scan reads a layer of a kernel's stack as fast as a layer alone."""
    leaves = jax.tree.leaves(parameters, is_leaf=is_variable)
    return any(isinstance(leaf.get_value(), tuple) for leaf in leaves)


def _together(parameters: Any, some: slice) -> Any:
    """Stacks of these layers.

    No compiled program makes them: layers one behind the other each take their own array out again.
    """

    def stack(leaf: nnx.Variable) -> nnx.Variable:
        value = leaf.get_value()[some]
        return leaf.replace(jnp.stack(value) if isinstance(value, tuple) else value)

    return jax.tree.map(stack, parameters, is_leaf=is_variable)


def at(leaf: jax.Array, number: jax.Array) -> jax.Array:
    """Return one layer of a stacked leaf."""
    return jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False)


def each(layers: nnx.Module, apply: Callable[[Any], Result]) -> Result:
    """Apply each of the stacked layers to the same input; stack the results on a leading axis.

    For few vectors and wide layers: parameters stay where they lie, the results travel.
    """
    graph, parameters = nnx.split(layers)

    def one(_: None, layer: Any) -> tuple[None, Result]:
        return None, apply(nnx.merge(graph, in_place(layer)))

    return jax.lax.scan(one, None, parameters, unroll=trace_options().unroll)[1]
