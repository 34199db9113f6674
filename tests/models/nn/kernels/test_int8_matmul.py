"""Products in 8 bits by Atelier's kernels equal qwix's, on one device and on several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax import nnx

from models.nn.kernels.int8_matmul import (
    BLOCK_BYTES,
    Epilogue,
    OfStack,
    blocks_for,
    eight_bit_for,
    multiplied,
    product,
    rounded_rows,
)
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.parameterised import (
    Linear,
    activated,
    from_heads,
    linear,
    linear_concatenated,
    to_heads,
)
from models.nn.layers.scanned import scan, stack
from models.nn.quant.matmul import EightBitKernel
from models.parallel.axis_rules import Layout
from models.parallel.trace_options import TraceOptions
from models.weights.quantize import rounded
from tests.parallel.layouts import layout

SUMS = 1e-6
"""Relative tolerance in float32: one more scaling, or another order."""
TIE = 1e-3
"""Distance from the midpoint of two integers within which rounding may go either way.

A product with a reciprocal and a quotient differ there by a few units in the last place of 127.
"""


def normal(seed: int, *shape: int) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=shape) * np.exp(rng.normal(size=(shape[0], 1))), jnp.float32)


@pytest.mark.parametrize(("tokens", "widths"), [(8, (256,)), (300, (128, 384))])
def test_rows_are_rounded_as_by_qwix(tokens: int, widths: Sequence[int]) -> None:
    """The last block of 300 tokens is partial. Parts of a row share one scale."""
    parts = [normal(width, tokens, width) for width in widths]
    parts[0] = parts[0].at[3].set(0.0)
    values, scale = rounded_rows(parts, interpret=True)
    joined = jnp.concatenate(parts, axis=1)
    expected = qwix.quantize(joined, jnp.int8, channelwise_axes=[0], scale_dtype=jnp.float32)
    assert (scale == expected.scale).all()
    output = jnp.concatenate(values, axis=1)
    fraction = jnp.abs(joined / scale) % 1.0
    tied = jnp.abs(fraction - 0.5) < TIE
    assert ((output == expected.qvalue) | tied).all() and tied.mean() < 0.01
    assert (output.max() == 127 and output.min() == -128) or tokens == 8


@pytest.mark.parametrize(
    ("tokens", "widths", "outputs", "dtype"),
    [(300, (256,), 640, "float32"), (8, (128, 256), 128, "bfloat16")],
)
def test_sums_are_qwixs_to_the_bit(
    tokens: int, widths: Sequence[int], outputs: int, dtype: str
) -> None:
    """Scales of 1 make the results equal the sums. 300 tokens end within a block."""
    rng = np.random.default_rng(1)
    parts = [jnp.asarray(rng.integers(-128, 128, (tokens, w)), jnp.int8) for w in widths]
    kernel = jnp.asarray(rng.integers(-128, 128, (sum(widths), outputs)), jnp.int8)
    ones = jnp.ones((tokens, 1)), jnp.ones((1, outputs))
    stack = OfStack(jnp.stack([0 * kernel, kernel]), jnp.int32(1))
    epilogue = Epilogue(ones[1], None, None, dtype)
    output = multiplied(parts, ones[0], stack, epilogue, interpret=True)
    rows = qwix.QArray(jnp.concatenate(parts, axis=1), ones[0])
    expected = qwix.dot_general(rows, qwix.QArray(kernel, ones[1]), (((1,), (0,)), ((), ())))
    assert output.dtype == dtype and (output == expected.astype(dtype)).all()


def test_upright_heads_are_rounded_as_rows() -> None:
    x, rows = normal(4, 300, 256), normal(5, 300, 128)
    heads = x.T.reshape(2, 128, 300)
    expected, scale = rounded_rows([x, rows], interpret=True)
    output, scale_of_heads = rounded_rows([heads, rows], interpret=True)
    assert (scale == scale_of_heads).all()
    assert all(
        (values == reference).all() for values, reference in zip(output, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("heads", "tokens_last", "activation"),
    [(0, False, tanh_gelu), (3, False, None), (3, True, tanh_gelu)],
)
def test_output_is_scaled_and_activated(activation: Any, heads: int, tokens_last: bool) -> None:
    x, kernel = normal(0, 72, 256), normal(1, 256, 384)
    values, columns = rounded(kernel, jnp.int8)
    bias = jnp.arange(384) / 384
    options: Any = {
        "activation": activation,
        "heads": heads,
        "tokens_last": tokens_last,
        "interpret": True,
    }
    output = product([x], OfStack(values[None], jnp.int32(0)), columns, bias, **options)
    if heads:
        assert output.shape == ((3, 128, 72) if tokens_last else (3, 72, 128))
        output = output.transpose((2, 0, 1) if tokens_last else (1, 0, 2)).reshape(72, 384)
    rows = qwix.quantize(x, jnp.int8, channelwise_axes=[0], scale_dtype=jnp.float32)
    expected = rows.qvalue.astype(jnp.float32) @ values.astype(jnp.float32)
    expected = expected * rows.scale * columns + bias
    expected = expected if activation is None else activation(expected)
    # one step of 256 for a value on a rounding tie, in one term of a sum
    step = (rows.scale * columns).max() * 127
    assert jnp.abs(output - expected).max() < step
    assert jnp.median(jnp.abs(output - expected)) < SUMS * jnp.abs(expected).max()


def layer_of(inputs: int, outputs: int, axes: tuple[str, str]) -> Linear:
    layer = linear(inputs, outputs, axes, rngs=nnx.Rngs(0))
    layer.bias[...] = jnp.linspace(-1, 1, outputs)
    values, scale = rounded(layer.kernel[...], jnp.int8)
    layer.eight = EightBitKernel(nnx.Param(values, axes=axes), nnx.Param(scale, axes=axes[1:]))
    return layer


def by_kernel(sizes: dict[str, int]) -> Layout:
    plain = layout(**sizes)
    kernel = partial(product, interpret=True)
    return Layout(plain.mesh, plain.kernel, plain.table, eight_bit=kernel)


LAYERS: dict[str, Any] = {
    "whole": (("embed", "mlp"), lambda layer, x: layer(x)),
    "activated": (("embed", "mlp"), lambda layer, x: activated(layer, x, tanh_gelu)),
    "to heads": (("embed", "heads"), lambda layer, x: to_heads(layer, x, 4)),
    "to heads with tokens last": (
        ("embed", "heads"),
        lambda layer, x: to_heads(layer, x, 4, tokens_last=True),
    ),
    "inputs": (("mlp", "embed"), lambda layer, x: layer(x)),
    "inputs activated": (("mlp", "embed"), lambda layer, x: activated(layer, x, tanh_gelu)),
    "from heads": (
        ("heads", "embed"),
        lambda layer, x: from_heads(layer, x.reshape(*x.shape[:2], 4, -1)),
    ),
    "joined": (
        ("mlp", "embed"),
        lambda layer, x: linear_concatenated(
            layer, [x[..., :128].reshape(*x.shape[:2], 2, -1), x[..., 128:]]
        ),
    ),
}


@pytest.mark.parametrize("sizes", [{"data": 1}, {"context": 2}, {"tensor": 2}, {"fsdp": 2}])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_by_layouts(name: str, sizes: dict[str, int]) -> None:
    """Under every layout, products are close to qwix's on one device; only the kernel multiplies
    8-bit numbers."""
    axes, call = LAYERS[name]
    layer = layer_of(512, 512, axes)
    x = normal(2, 40, 512)[None].repeat(2, axis=0)
    with TraceOptions(quant="w8a8").active():
        expected = call(layer, x)
    graph, state = nnx.split(layer)
    chosen = by_kernel(sizes)

    def run(state: Any, x: jax.Array) -> jax.Array:
        with TraceOptions(chosen, quant="w8a8").active():
            output: jax.Array = call(nnx.merge(graph, state), x)
            return output

    assert "multiplied" in str(jax.make_jaxpr(run)(state, x))
    output = jax.jit(run)(state, x)
    assert output.shape == expected.shape
    # If inputs are split, each device has its own scales; both results are equally near the exact
    # ones.
    error = jnp.abs(output - expected).mean() / jnp.abs(expected).mean()
    assert error < (0.02 if "tensor" in sizes and axes[1] == "embed" else 1e-4)


@pytest.mark.parametrize("sizes", [{"data": 1}, {"context": 2}, {"fsdp": 2}])
def test_scan_reads_kernels_in_place(sizes: dict[str, int]) -> None:
    """The scan copies a layer's kernel only if the layout gathers it for each layer."""
    layers = stack(partial(linear, 256, 256, ("embed", "mlp")), 3, rngs=nnx.Rngs(0))
    values, scale = rounded(layers.kernel[...], jnp.int8)
    axes = ("layers", "embed", "mlp")
    layers.eight = EightBitKernel(
        nnx.Param(values, axes=axes), nnx.Param(scale, axes=("layers", "mlp"))
    )
    x, chosen = normal(6, 16, 256)[None], by_kernel(sizes)
    graph, state = nnx.split(layers)

    def run(state: Any, x: jax.Array, by: Layout | None = None) -> jax.Array:
        with TraceOptions(by, quant="w8a8").active():
            return scan(nnx.merge(graph, state), x, lambda layer, x: layer(x) / 8)[0]

    split = partial(run, by=chosen)
    cut = "i8[1,256,256]"  # slice of the stack that `product_by_kernel` makes for one layer
    assert (cut in str(jax.make_jaxpr(split)(state, x))) == ("fsdp" in sizes)
    expected, output = run(state, x), jax.jit(split)(state, x)
    assert jnp.abs(output - expected).mean() < 1e-2 * jnp.abs(expected).mean()


@pytest.mark.parametrize("inputs", [64, 192])
def test_narrow_layers_are_qwixs(inputs: int) -> None:
    """The kernel requires full lanes, and a layout that has the kernel."""
    layer = layer_of(inputs, 128, ("embed", "mlp"))
    x = normal(3, 16, inputs)[None]
    with TraceOptions(quant="w8a8").active():
        expected = layer(x)
    with TraceOptions(by_kernel({"data": 1}), quant="w8a8").active():
        assert (layer(x) == expected).all()


@pytest.mark.parametrize(
    ("tokens", "inputs", "outputs"),
    [(4608, 3072, 12288), (4608, 15360, 3072), (1152, 3072, 3072), (18_900, 5120, 13824),
     (18_900, 13824, 5120), (2048, 1280, 1280), (77, 2048, 1280)],
)  # fmt: skip
def test_blocks_fit_in_memory_and_divide_the_shape(tokens: int, inputs: int, outputs: int) -> None:
    blocks = blocks_for(tokens, inputs, outputs, 128, 2)
    assert outputs % blocks.outputs == 0 and blocks.outputs % 128 == 0
    values = inputs * (blocks.tokens + blocks.outputs) + 2 * blocks.tokens * blocks.outputs
    assert 2 * values <= BLOCK_BYTES


def test_too_many_inputs_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="1000000 inputs"):
        blocks_for(512, 1_000_000, 128, 128, 2)


@pytest.mark.parametrize(("kind", "own"), [("TPU v6 lite", True), ("TPU v4", False)])
def test_chips_with_an_8_bit_product_kernel(kind: str, own: bool) -> None:
    assert (eight_bit_for(kind) is product) == own
