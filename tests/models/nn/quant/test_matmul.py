"""Matrix products in 8 bits: their error, and which layers use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax import nnx

from models.flux.config import FluxConfig
from models.flux.network import FluxTransformer
from models.loading.abstract import abstract_module
from models.nn.layers.parameterised import from_heads, linear, to_heads
from models.nn.quant.matmul import EightBitKernel, kind_of, product, weight_only
from models.parallel import jax_internals
from models.parallel.trace_options import TraceOptions
from models.wan.config import WanConfig
from models.wan.network import WanTransformer
from models.weights.quantize import Rounding, rounded

RELATIVE = 0.011
"""Mean error of int8 relative to the mean product, of normal numbers over hundreds of channels.

Both operands are rounded by at most half of 1/127 of the largest value, which is three or four
deviations.
"""


@pytest.fixture(scope="module")
def operands() -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(2, 48, 256)) * np.exp(rng.normal(size=(2, 48, 1)))
    kernel = rng.normal(size=(256, 96)) * np.exp(rng.normal(size=(1, 96)))
    return jnp.asarray(tokens, jnp.float32), jnp.asarray(kernel, jnp.float32)


def test_int8_error_is_small_at_any_scale(operands: Any) -> None:
    tokens, kernel = operands
    output, exact = product(tokens, *rounded(kernel, jnp.int8)), tokens @ kernel
    error = jnp.abs(output - exact).mean(axis=0) / jnp.abs(exact).mean(axis=0)
    assert 0.001 < float(jnp.median(error)) < RELATIVE
    token_and_channel = jnp.abs(output - exact).mean(axis=-1) / jnp.abs(exact).mean(axis=-1)
    assert float(token_and_channel.max()) < 3 * RELATIVE


@pytest.mark.parametrize("kind", [jnp.int8, jnp.float8_e4m3fn])
def test_exact_activations_are_nearer(operands: Any, kind: Any) -> None:
    """Only one of two roundings remains. The error of two equal roundings is 1.4 times as large."""
    tokens, kernel = operands
    eight, exact = rounded(kernel, kind), tokens @ kernel
    rounded_activations, exact_activations = (
        float(jnp.abs(multiply(tokens, *eight) - exact).mean())
        for multiply in (product, weight_only)
    )
    assert 0.5 * rounded_activations < exact_activations < 0.85 * rounded_activations


@pytest.mark.parametrize("kind", [jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_weight_only_product_adds_no_error_in_16_bits(operands: Any, kind: Any, dtype: Any) -> None:
    """A product with 8-bit weights alone adds no error in 16 bits, in its values or in its sums,
    which exceed float16's range before scaling."""
    tokens, kernel = operands
    x, (values, scale) = (10 * tokens).astype(dtype), rounded(kernel, kind)
    wide = weight_only(x.astype(jnp.float32), values, scale)
    assert float(jnp.abs(wide / scale).max()) > float(jnp.finfo(jnp.float16).max)
    output = weight_only(x, values, scale)
    assert output.dtype == dtype
    error = jnp.abs(output.astype(jnp.float32) - wide) / jnp.abs(wide).max()
    assert float(error.max()) < float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize("multiply", [product, weight_only])
def test_tokens_are_rounded_by_themselves(operands: Any, multiply: Any) -> None:
    """Bit-exact: a token's result does not depend on other tokens, even larger ones."""
    tokens, kernel = operands
    eight = rounded(kernel, jnp.int8)
    single = multiply(tokens, *eight)
    batched = multiply(jnp.concatenate([tokens, 1e3 * tokens], axis=1), *eight)
    assert (batched[:, : tokens.shape[1]] == single).all()


@pytest.mark.parametrize(("dtype", "close"), [(jnp.float32, 1e-6), (jnp.bfloat16, 2**-7)])
def test_transposed_floats_give_the_same_result(operands: Any, dtype: Any, close: float) -> None:
    """Equal to qwix with its inputs first. In bfloat16, results differ by two roundings."""
    tokens, kernel = (operand.astype(dtype) for operand in operands)
    values, scale = rounded(kernel, jnp.float8_e4m3fn)
    assert values.shape == kernel.shape[::-1] and values.dtype == jnp.float8_e4m3fn
    rows = qwix.quantize(tokens, values.dtype, channelwise_axes=(0, 1), scale_dtype=jnp.float32)
    columns = qwix.QArray(values.T, scale[None])
    expected = qwix.dot_general(rows, columns, (((2,), (0,)), ((), ()))).astype(jnp.float32)
    output = product(tokens, values, scale)
    assert output.dtype == dtype
    error = jnp.abs(output.astype(jnp.float32) - expected).max(axis=(0, 1))
    assert (error <= close * jnp.abs(expected).max(axis=(0, 1))).all()


@pytest.mark.parametrize(("products", "multiply"), [("w8a8", product), ("w8a16", weight_only)])
def test_quantization_applies_only_where_enabled(
    operands: Any, products: Any, multiply: Any
) -> None:
    """A layer with an axis of heads gives the same numbers as one without."""
    tokens, kernel = operands
    layer = linear(*kernel.shape, (None, None), rngs=nnx.Rngs(0))
    layer.kernel[...] = kernel
    layer.bias[...] = jnp.arange(96.0)
    exact = layer(tokens)
    with TraceOptions(quant=products).active():
        assert (layer(tokens) == exact).all(), "the layer has no 8-bit kernel"
    values, scale = rounded(kernel, jnp.int8)
    layer.eight = EightBitKernel(nnx.Param(values), nnx.Param(scale))
    assert (layer(tokens) == exact).all(), "no trace option requests 8-bit products"
    with TraceOptions(quant=None).active():
        assert (layer(tokens) == exact).all()
    with TraceOptions(quant=products).active():
        flat = layer(tokens)
        assert (flat == multiply(tokens, values, scale) + jnp.arange(96.0)).all()
        assert (to_heads(layer, tokens, 4) == flat.reshape(2, 48, 4, 24)).all()
        assert (from_heads(layer, tokens.reshape(2, 48, 4, 64)) == flat).all()


def read_by(jaxpr: Any, primitive: str, operand: int) -> list[str]:
    """Dtypes that operations of one primitive read at an operand, in a program and its inner
    programs.
    """
    dtypes = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == primitive:
            dtypes.append(str(equation.invars[operand].aval.dtype))
        for inner in jax_internals.jaxprs_in_params(equation.params):
            dtypes += read_by(inner, primitive, operand)
    return dtypes


def of_network(
    make: Callable[..., nnx.Module], config: Any, call: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Return a function that traces the network with the given kind of products."""
    network = abstract_module(make, config, param_dtype=jnp.bfloat16)
    graph, state = nnx.split(Rounding("beside").of(network))

    def program(products: Any) -> Any:
        def network(state: Any) -> Any:
            with TraceOptions(quant=products).active():
                return call(nnx.merge(graph, state))

        return jax.make_jaxpr(network)(state).jaxpr

    return program


def zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape, jnp.float32)


FLUX = FluxConfig(
    num_layers=2,
    num_single_layers=2,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=8,
    pooled_projection_dim=8,
    in_channels=16,
    axes_dims_rope=(4, 6, 6),
)
WAN = WanConfig(
    num_layers=2, num_attention_heads=2, attention_head_dim=12, ffn_dim=32, text_dim=8, freq_dim=8
)


@pytest.mark.parametrize(
    ("make", "config", "call", "of_tokens", "of_vectors"),
    [
        (
            FluxTransformer,
            FLUX,
            lambda network: network(
                zeros(1, 4, 16), zeros(1, 3, 8), zeros(1, 8), zeros(1), None,
                np.zeros((4, 3), int), np.zeros((3, 3), int),
            ),
            2 * 6 + 5,  # double block: q, k, v, out, up, down of both streams; single block
            3,  # modulations of both streams, and of single blocks
        ),
        (
            WanTransformer,
            WAN,
            lambda network: network(zeros(1, 1, 4, 4, 16), zeros(1), zeros(1, 3, 8)),
            4 + 4 + 2,
            0,
        ),
    ],
)  # fmt: skip
def test_the_products_of_a_network(
    make: Any, config: Any, call: Any, of_tokens: int, of_vectors: int
) -> None:
    """The blocks' products, scanned once each, are the only ones in 8 bits, and only if enabled.

    Products with exact activations convert their 8-bit operands.
    """
    program = of_network(make, config, call)
    read = {
        products: [
            read_by(program(products), *of)
            for of in (("dot_general", 1), ("convert_element_type", 0))
        ]
        for products in ("w8a8", "w8a16", None)
    }
    assert read["w8a8"][0].count("int8") == of_tokens
    assert read["w8a8"][1].count("int8") == of_vectors
    assert read["w8a16"][1].count("int8") == of_tokens + of_vectors
    assert len({len(products) for products, _ in read.values()}) == 1
    for products in ("w8a16", None):
        assert "int8" not in read[products][0]
    assert "int8" not in read[None][1]


@pytest.mark.parametrize(
    ("chip", "kind"),
    [
        (("gpu", "9.0"), jnp.float8_e4m3fn),
        (("gpu", "8.9"), jnp.float8_e4m3fn),
        (("gpu", "8.0"), jnp.int8),
        (("tpu",), jnp.int8),
        ((None,), jnp.int8),
    ],
)
def test_the_numbers_of_a_chip(chip: Any, kind: Any) -> None:
    assert kind_of(*chip) == kind
