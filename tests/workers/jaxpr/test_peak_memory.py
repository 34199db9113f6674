from __future__ import annotations

import jax
import jax.numpy as jnp

from workers.jaxpr.axis_tags import Tag
from workers.jaxpr.operations import work_of
from workers.jaxpr.peak_memory import peak

SIDE = 64
SQUARE = SIDE * SIDE * 4
"""Bytes of each value below."""


def bytes_of(function: object, arguments: int) -> float:
    shapes = [jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)] * arguments
    jaxpr = jax.make_jaxpr(function)(*shapes)
    _, tags = work_of(jaxpr, [Tag()] * arguments)
    return sum(peak(jaxpr.jaxpr, tags).values())


def test_chain_keeps_only_input_and_output() -> None:
    assert bytes_of(lambda x, w: x @ w @ w @ w @ w, 2) == 2 * SQUARE


def test_value_needed_later_stays_in_memory() -> None:
    def skip(x: jax.Array, w: jax.Array) -> jax.Array:
        first = x @ w
        return (first @ w @ w @ w) @ first

    assert bytes_of(skip, 2) == 3 * SQUARE


def test_elementwise_work_is_fused() -> None:
    assert bytes_of(lambda x, w: jnp.tanh(jnp.exp(x @ w) + 1) * 2, 2) <= 2 * SQUARE


def test_platform_specific_branch_is_fused() -> None:
    """Only one platform's branch runs. It may be fused, and then uses no memory of its own."""

    def twice(x: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(x, tpu=lambda x: x @ x, default=lambda x: x + x)

    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(twice(x @ w)) @ w

    assert bytes_of(chain, 2) == bytes_of(lambda x, w: jnp.tanh(2 * (x @ w)) @ w, 2)
