"""FLOPs of traced programs, compared with XLA's counts of compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from workers.jaxpr.axis_tags import Tag, reshaped
from workers.jaxpr.logical_mesh import logical_layout
from workers.jaxpr.operations import Work, work_of

LAYERS = 5


def of(function: Callable[..., Any], *shapes: tuple[int, ...], weights: Any = ()) -> Work:
    """Return the work of a traced function.

    Args:
        weights: Logical axes of the first arguments.
    """
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    tags = [Tag(dims=axes) for axes in weights] + [Tag()] * (len(shapes) - len(weights))
    return work_of(jax.make_jaxpr(function)(*arguments), tags)[0]


def counted(function: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return float(jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"])


def attention(q: jax.Array, k: jax.Array) -> jax.Array:
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), k)


def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=dims)


def conv_of_sound(x: jax.Array, kernel: jax.Array, *, groups: int = 1, twice: int = 1) -> jax.Array:
    """Convolve along one axis, by groups of channels or with zeros between the samples."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (1,),
        ((0, 0),),
        lhs_dilation=(twice,),
        dimension_numbers=("NTC", "TIO", "NTC"),
        feature_group_count=groups,
    )


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: x @ w, ((96, 64), (64, 128))),
        (attention, ((2, 64, 4, 64), (2, 96, 4, 64))),
        (conv, ((1, 24, 24, 16), (3, 3, 16, 32))),
        (conv_of_sound, ((2, 200, 16), (7, 16, 8))),
        (partial(conv_of_sound, groups=16), ((2, 200, 16), (12, 1, 16))),
        (partial(conv_of_sound, twice=4), ((1, 200, 16), (8, 16, 8))),
    ],
    ids=["product", "attention", "convolution", "of sound", "of each channel", "transposed"],
)
def test_flops_are_those_of_the_compiled_program(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    # Softmax is a few operations a logit, over 128 of both products together.
    assert of(function, *shapes).flops == pytest.approx(counted(function, *shapes), rel=0.05)


def test_only_the_default_platform_branch_is_counted() -> None:
    """Only the default branch of an operation by platform counts; otherwise TPUs' matrix products
    for RoPE would count as the network's own."""

    def by_platform(x: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(x, tpu=lambda x: x @ x, default=lambda x: x + x)

    assert of(by_platform, (8, 8)).flops == 0


def test_loop_bodies_are_counted_per_iteration() -> None:
    def deep(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (x @ w, None), x, weights)[0]

    shapes = (LAYERS, 32, 32), (8, 32)
    axes = ("layers", "embed", "mlp")
    assert of(deep, *shapes, weights=[axes]).flops == LAYERS * 2 * 8 * 32 * 32


def test_weight_axes_split_products_until_they_are_summed() -> None:
    def pair(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ up) @ down

    axes = [("embed", "mlp"), ("mlp", "embed")]
    work = of(pair, (16, 64), (64, 16), (8, 16), weights=axes)
    assert {op.axes for op in work.ops} == {(("mlp", 64),)}
    (sent,) = work.exchanges
    assert (sent.kind, sent.on, sent.sent_bytes, sent.axes) == ("reduce", "mlp", 8 * 16 * 4, ())


def test_indexed_layer_of_a_stack_splits_its_product() -> None:
    def layers(stack: jax.Array, x: jax.Array, number: jax.Array) -> jax.Array:
        return x @ jax.lax.dynamic_index_in_dim(stack, number, keepdims=False)

    shapes = ((LAYERS, 64, 32), (8, 64))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    jaxpr = jax.make_jaxpr(layers)(*arguments, jax.ShapeDtypeStruct((), jnp.int32))
    (work, _) = work_of(jaxpr, [Tag(dims=("layers", "mlp", None)), Tag(), Tag()])
    ((exchange, count),) = [pair for pair in work.exchanges.items() if pair[0].kind == "reduce"]
    assert (exchange.on, count) == ("mlp", 1)


def test_pairwise_products_are_not_attention() -> None:
    def pairs(q: jax.Array, k: jax.Array) -> jax.Array:
        return jnp.einsum("bthd,bthd->bth", q, k)

    sharding = NamedSharding(logical_layout().mesh, PartitionSpec("batch", "tokens"))

    def split(q: jax.Array, k: jax.Array) -> jax.Array:
        return pairs(*(jax.lax.with_sharding_constraint(x, sharding) for x in (q, k)))

    work = of(split, (1, 64, 4, 8), (1, 64, 4, 8))
    assert {op.kind for op in work.ops} == {"matmul"}
    assert "attention" not in {exchange.kind for exchange in work.exchanges}
    assert work.flops == 2 * 64 * 4 * 8


def test_constraints_split_activations() -> None:
    layout = logical_layout()
    place = NamedSharding(layout.mesh, PartitionSpec("batch", "tokens"))

    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, place) @ w

    work = of(run, (16, 32), (2, 24, 16), weights=[(None, "heads")])
    (op,) = work.ops
    assert op.axes == (("batch", 2), ("heads", 32), ("tokens", 24))


@pytest.mark.parametrize(
    ("before", "dims", "after", "expected"),
    [
        ((64, 96), ("embed", "heads"), (64, 3, 32), ("embed", "heads", None)),
        ((3, 32, 64), ("heads", None, "embed"), (96, 64), ("heads", "embed")),
        ((1, 64, 96), (None, "embed", "heads"), (64, 96), ("embed", "heads")),
    ],
)
def test_weight_axes_survive_a_reshape(
    before: tuple[int, ...], dims: Any, after: tuple[int, ...], expected: Any
) -> None:
    assert reshaped(dims, before, after) == expected
