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
from flax import nnx

from models.sharding import gathered, in_place

Layer = TypeVar("Layer", bound=nnx.Module)
Carry = TypeVar("Carry")
Result = TypeVar("Result")

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


def scan(
    layers: nnx.Module, carry: Carry, apply: Callable[..., Carry], *of_layers: Any
) -> tuple[Carry, Carry]:
    """Runs the stacked layers in order: carry = apply(layer, carry, *of this layer).

    Returns the last carry and, stacked on a leading axis, the carry that each layer was given.

    Args:
        of_layers: what else each layer is given, stacked on a leading axis.
    """
    graph, parameters = nnx.split(layers)

    def one(carry: Carry, of_layer: Any) -> tuple[Carry, Carry]:
        layer, *others = of_layer
        return apply(nnx.merge(graph, gathered(layer)), carry, *others), carry

    return jax.lax.scan(one, carry, (parameters, *of_layers), unroll=_unroll.get())


def each(layers: nnx.Module, apply: Callable[[Any], Result]) -> Result:
    """What each of the stacked layers makes of the same, stacked on a leading axis.

    For few vectors and wide layers: parameters stay where they lie, the results travel.
    """
    graph, parameters = nnx.split(layers)

    def one(_: None, layer: Any) -> tuple[None, Result]:
        return None, apply(nnx.merge(graph, in_place(layer)))

    return jax.lax.scan(one, None, parameters, unroll=_unroll.get())[1]
