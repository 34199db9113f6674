"""Parameterised layers, which name the logical axes of every array that they create.

A name is a row of the sharding table; networks contain nothing else about sharding. Arrays keep the
dtype they were loaded in; activations have that of their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from models.nn.kernels.int8_matmul import Activation
from models.nn.layers.adapter_bank import AdapterBank
from models.nn.layers.adapter_magnitudes import with_magnitudes
from models.nn.quant.matmul import EightBitKernel, inputs_first, multiplied, scaled
from models.nn.quant.sharded import product_by_kernel
from models.parallel import jax_internals
from models.parallel.placement import in_memory
from models.parallel.trace_options import trace_options

Axes = tuple[str | None, ...]

_kernel = nnx.initializers.lecun_normal()
_embedding = nnx.initializers.normal(0.02)


class Kinds(TypedDict):
    """Keyword arguments common to the constructors of all layers."""

    rngs: nnx.Rngs
    param_dtype: DTypeLike


class Linear(nnx.Linear):
    """Linear layer, y = x W + b, plus the adapters of the trace's rows.

    Uses its 8-bit kernel if it has one and the trace's options enable it.
    """

    eight: EightBitKernel | None = None
    bank: AdapterBank | None = None

    def __call__(
        self, x: Float[Array, "*batch in_features"], out_sharding: Any = None
    ) -> Float[Array, "*batch out_features"]:
        """Multiply, in 8 bits if the trace's options enable it, and add adapters."""
        return adapted(self, x, self._multiplied(scaled_inputs(self, x), out_sharding))

    def _multiplied(self, x: Array, out_sharding: Any) -> Array:
        eight = self.eight_bit_kernel
        if eight is None:
            return super().__call__(x, out_sharding)
        product = by_kernel(self, [x.reshape(1, -1, x.shape[-1]) if x.ndim != 3 else x])
        if product is not None:
            return product.reshape(*x.shape[:-1], -1)
        out = multiplied(x, eight)
        return out if self.bias is None else out + self.bias[...].astype(out.dtype)

    @property
    def eight_bit_kernel(self) -> EightBitKernel | None:
        """8-bit kernel, if the layer has one and the current trace uses it."""
        return self.eight if trace_options().quant else None

    @property
    def is_adapted(self) -> bool:
        """True if rows of the current trace may have adapters for this layer."""
        return self.bank is not None and trace_options().adapters is not None


def adapted(layer: Linear, x: Array, out: Array) -> Array:
    """Add what the rows' adapters compute from a layer's inputs to its outputs of any shape.

    Args:
        x: [batch, *tokens, in].
    """
    rows, features = trace_options().adapters, out.shape[x.ndim - 1 :]
    if layer.bank is None or rows is None:
        return out
    if rows.owners is None:
        return layer.bank.added(out, layer.bank.of_rows(x, rows).change(x, features))
    pages, gains = with_magnitudes(layer.bank, _exact_kernel(layer), x, rows)
    bias = None if layer.bias is None else layer.bias[...]
    return layer.bank.added(gains.stretched(out, bias, len(features)), pages.change(x, features))


def scaled_inputs(layer: Linear, x: Array) -> Array:
    """Scale a layer's inputs by the input magnitudes of the rows' adapters."""
    if not has_magnitudes(layer):
        return x
    rows = trace_options().adapters
    assert layer.bank is not None and rows is not None
    return with_magnitudes(layer.bank, _exact_kernel(layer), x, rows)[1].read(x)


def has_magnitudes(layer: Linear) -> bool:
    """Return whether rows of the current trace may have adapters that set a layer's magnitudes."""
    rows = trace_options().adapters
    return layer.bank is not None and rows is not None and rows.owners is not None


def _exact_kernel(layer: Linear) -> Num[Array, "in_features out_features"]:
    """Return a layer's kernel, dequantized if the layer has only 8-bit values."""
    if layer.kernel is not None and layer.kernel.get_value() is not None:
        kernel: Array = layer.kernel[...]
        return kernel
    assert layer.eight is not None  # a layer has a kernel or 8-bit values
    return inputs_first(layer.eight.values[...]).astype(jnp.float32) * layer.eight.scale[...]


def by_kernel(
    layer: Linear, parts: Sequence[Float[Array, "batch tokens *_features"]], **how: Any
) -> Array | None:
    """Call `models.nn.quant.sharded.product_by_kernel`; return None also for exact activations."""
    if layer.eight_bit_kernel is None or trace_options().quant != "w8a8":
        return None
    bias = None if layer.bias is None else layer.bias[...]
    return product_by_kernel(layer.eight_bit_kernel, parts, bias, **how)


def activated(
    layer: Linear, x: Float[Array, "batch tokens in_features"], activation: Activation
) -> Float[Array, "batch tokens out_features"]:
    """Compute activation(layer(x)), in one pass if `int8_matmul` runs the product."""
    output = None if layer.is_adapted else by_kernel(layer, [x], activation=activation)
    return activation(layer(x)) if output is None else output


def linear_concatenated(
    layer: Linear,
    parts: Sequence[
        Float[Array, "batch tokens _features"] | Float[Array, "batch tokens _heads _dim"]
    ],
) -> Float[Array, "batch tokens out_features"]:
    """Compute layer(x) of concatenated parts; `int8_matmul` does not concatenate them."""
    product = None if has_magnitudes(layer) else by_kernel(layer, parts)
    if product is not None and not layer.is_adapted:
        return product
    flat = [part.reshape(*part.shape[:2], -1) for part in parts]
    joined = jnp.concatenate(flat, axis=-1)
    return layer(joined) if product is None else adapted(layer, joined, product)


def linear(
    in_features: int,
    out_features: int,
    axes: Axes,
    *,
    rngs: nnx.Rngs,
    use_bias: bool = True,
    param_dtype: DTypeLike = jnp.float32,
) -> Linear:
    """Build a linear layer: kernel [in, out] with logical axes; the bias has the second."""
    return Linear(
        in_features,
        out_features,
        use_bias=use_bias,
        kernel_init=_kernel,
        kernel_metadata={"axes": axes},
        bias_metadata={"axes": axes[1:]},
        param_dtype=param_dtype,
        rngs=rngs,
    )


def to_heads(
    layer: Linear,
    x: Float[Array, "batch tokens in_features"],
    heads: int,
    *,
    tokens_last: bool = False,
) -> Float[Array, "batch tokens heads dim"]:
    """Compute layer(x) with its features split by head.

    As one product with a heads axis, XLA can write them head by head, as attention reads them.
    After a product without that axis, the compiler copies or transposes the tokens. If both
    operands have 8 bits, it would instead transpose the kernels of all layers in each layer;
    `int8_matmul` writes the requested order.

    Args:
        tokens_last: store each head's tokens contiguously; only if nothing but attention
            reads them.
    """
    if layer.eight_bit_kernel is not None and trace_options().quant == "w8a8":
        read = scaled_inputs(layer, x)
        product = by_kernel(layer, [read], heads=heads, tokens_last=tokens_last)
        if product is None:
            return layer(x).reshape(*x.shape[:2], heads, -1)
        return adapted(layer, x, product)
    features = (x.shape[-1], heads, -1)
    return adapted(layer, x, _by_heads(layer, scaled_inputs(layer, x), features, (heads, -1)))


def from_heads(
    layer: Linear, x: Float[Array, "batch tokens heads dim"]
) -> Float[Array, "batch tokens out_features"]:
    """Compute layer(x) of features split by head, which need not be adjacent in memory."""
    flat = x.reshape(*x.shape[:2], -1)
    read = scaled_inputs(layer, flat).reshape(x.shape) if has_magnitudes(layer) else x
    if layer.eight_bit_kernel is not None and trace_options().quant == "w8a8":
        product = by_kernel(layer, [read])
        return layer(flat) if product is None else adapted(layer, flat, product)
    return adapted(layer, flat, _by_heads(layer, read, (*x.shape[2:], -1), (-1,)))


def _by_heads(
    layer: Linear, x: Array, features: tuple[int, ...], out_features: tuple[int, ...]
) -> Array:
    """Compute x W + b by head, with unquantized activations.

    Args:
        x: [batch, tokens, *in].
        features, out_features: shapes of W, [*in, *out], and of b, [*out].
    """
    eight = layer.eight_bit_kernel
    if eight is None:
        kernel = _in_rows(layer.kernel, layer.kernel[...].astype(x.dtype))
    else:
        kernel = _of_8_bits(eight).astype(x.dtype)
    count = x.ndim - 2
    out = jax.lax.dot_general(
        x,
        kernel.reshape(features),
        ((tuple(range(2, x.ndim)), tuple(range(count))), ((), ())),
        preferred_element_type=None if eight is None else jnp.float32,
    )
    if eight is not None:
        out = scaled(out, eight.scale[...].reshape(out_features), x.dtype)
    if layer.bias is None:
        return out
    return out + layer.bias[...].astype(x.dtype).reshape(out_features)


def _of_8_bits(kernel: EightBitKernel) -> Num[Array, "in_features out_features"]:
    """Return 8-bit kernel values in row-major memory order.

    The layer's values are taken from the stack first: otherwise a TPU's compiler copies the stack
    of all layers in each layer.
    """
    return inputs_first(_in_rows(kernel.values, jax.lax.optimization_barrier(kernel.values[...])))


def _in_rows(
    parameter: nnx.Param[Any], kernel: Num[Array, "in_features out_features"]
) -> Num[Array, "in_features out_features"]:
    """Constrain a kernel to row-major memory, as it is stored.

    For a product with a heads axis a TPU's compiler otherwise transposes it, and the product takes
    longer: 2.25 + 0.3 ms instead of 1.43 (18,900 tokens, 5,120 to 5,120, v6e).
    """
    return in_memory(_row_major, kernel, parameter)


def _row_major(kernel: Array) -> Array:
    constrained: Array = jax_internals.with_layout_constraint(
        kernel, jax_internals.ArrayLayout((0, 1))
    )
    return constrained


class Conv(nnx.Conv):
    """Channels-last convolution; `models.nn.layers.convolution` adds adapters."""

    bank: AdapterBank | None = None


def conv(  # noqa: PLR0913 # nnx.Conv's arguments
    in_features: int,
    out_features: int,
    kernel_size: Sequence[int],
    *,
    rngs: nnx.Rngs,
    strides: int | Sequence[int] = 1,
    padding: int | Sequence[tuple[int, int]] = 0,
    dilation: int = 1,
    axes: Axes = ("conv_in", "conv_out"),
    use_bias: bool = True,
    param_dtype: DTypeLike = jnp.float32,
) -> Conv:
    """Build a channels-last convolution, kernel [*window, in, out]; `axes` name the last two."""
    window = (None,) * len(kernel_size)
    return Conv(
        in_features,
        out_features,
        kernel_size,
        strides=strides,
        padding=padding,
        kernel_dilation=dilation,
        use_bias=use_bias,
        kernel_init=_kernel,
        kernel_metadata={"axes": (*window, *axes)},
        bias_metadata={"axes": axes[1:]},
        param_dtype=param_dtype,
        rngs=rngs,
    )


def embed(
    count: int, features: int, axes: Axes, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
) -> nnx.Embed:
    """Build an embedding table [count, features], looked up by id."""
    return nnx.Embed(
        count,
        features,
        embedding_init=_embedding,
        embedding_metadata={"axes": axes},
        param_dtype=param_dtype,
        rngs=rngs,
    )
