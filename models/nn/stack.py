"""Equal layers as one: parameters stacked on a leading axis, run by a scan.

One layer is traced and compiled however deep the network, so a full-size model compiles in
seconds. A stacked leaf has the path of the single layer's leaf and one more leading axis, named
"layers".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.nn.eight_bit import in_blocks
from models.sharding import gathered

Layer = TypeVar("Layer", bound=nnx.Module)
Carry = TypeVar("Carry")

_unroll: ContextVar[bool | int] = ContextVar("unroll", default=1)


@contextmanager
def unrolled() -> Iterator[None]:
    """What is traced in here has its scanned layers one behind the other, without a loop.

    For training small networks on CPU, where a loop nearly doubles the time of a step; the price
    is a compile time that grows with the layers.
    """
    token = _unroll.set(True)
    try:
        yield
    finally:
        _unroll.reset(token)


def stack(make: Callable[[nnx.Rngs], Layer], layers: int, rngs: nnx.Rngs) -> Layer:
    """`layers` of what `make` builds, each with its own random parameters, as one module."""
    keys = jax.random.split(rngs.params(), layers)
    stacked = nnx.vmap(lambda key: make(type(rngs)(key)))(keys)
    for _, node in nnx.iter_graph(stacked):
        if isinstance(node, nnx.Param):
            node.set_metadata(axes=("layers", *node.axes))
    return stacked


def layers_of(stacked: nnx.Module) -> int:
    """How many layers a stack has."""
    return len(jax.tree.leaves(nnx.state(stacked, nnx.Param))[0])


def scan(
    layers: nnx.Module,
    carry: Carry,
    apply: Callable[[Any, Carry], Carry],
    between: tuple[int, int] | None = None,
) -> tuple[Carry, Carry]:
    """Runs the stacked layers in order: carry = apply(layer, carry).

    Returns the last carry and, stacked on a leading axis, the carry that each layer was given.

    Args:
        between: the first layer to run and the one to stop at; None: all.
    """
    graph, parameters = nnx.split(layers)
    if between is not None:
        return _scan_some(graph, parameters, carry, apply, jnp.arange(*between))

    def one(carry: Carry, layer: Any) -> tuple[Carry, Carry]:
        with in_blocks():
            return apply(nnx.merge(graph, gathered(layer)), carry), carry

    return jax.lax.scan(one, carry, parameters, unroll=_unroll.get())


def _scan_some(
    graph: nnx.GraphDef,
    parameters: Any,
    carry: Carry,
    apply: Callable[[Any, Carry], Carry],
    layers: jax.Array,
) -> tuple[Carry, Carry]:
    """Looks each layer up in the whole stack: to cut some of it off would copy the weights."""

    def one(carry: Carry, number: jax.Array) -> tuple[Carry, Carry]:
        def its_own(leaf: nnx.Variable) -> nnx.Variable:
            return leaf.replace(jax.lax.dynamic_index_in_dim(leaf[...], number, keepdims=False))

        layer = jax.tree.map(its_own, parameters, is_leaf=lambda x: isinstance(x, nnx.Variable))
        with in_blocks():
            return apply(nnx.merge(graph, gathered(layer)), carry), carry

    return jax.lax.scan(one, carry, layers, unroll=_unroll.get())
