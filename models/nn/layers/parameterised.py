"""Parameterised layers, with the logical axes of every array named where it is made.

A name here is a row of the sharding table; nothing else in a network knows how it is split.
Arrays keep the dtype they were loaded in; activations follow their inputs.
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
from models.nn.quant.matmul import Rounded, multiplied, scaled, upright_values
from models.nn.quant.sharded import product_by_kernel
from models.parallel import jax_internals
from models.parallel.placement import in_memory
from models.parallel.trace_options import trace_options

Axes = tuple[str | None, ...]

_kernel = nnx.initializers.lecun_normal()
_embedding = nnx.initializers.normal(0.02)


class Kinds(TypedDict):
    """Arguments of every layer."""

    rngs: nnx.Rngs
    param_dtype: DTypeLike


class Linear(nnx.Linear):
    """y = x W + b, and what the adapters of the trace's rows add.

    By its kernel in 8 bits, where it has one and the trace's options ask for it.
    """

    eight: Rounded | None = None
    bank: AdapterBank | None = None

    def __call__(
        self, x: Float[Array, "*batch in_features"], out_sharding: Any = None
    ) -> Float[Array, "*batch out_features"]:
        """Multiply, with 8 bits where the trace asks for them, and adapt."""
        return adapted(self, x, self._multiplied(x, out_sharding))

    def _multiplied(self, x: Array, out_sharding: Any) -> Array:
        eight = self.asked
        if eight is None:
            return super().__call__(x, out_sharding)
        own = by_kernel(self, [x.reshape(1, -1, x.shape[-1]) if x.ndim != 3 else x])
        if own is not None:
            return own.reshape(*x.shape[:-1], -1)
        out = multiplied(x, eight)
        return out if self.bias is None else out + self.bias[...].astype(out.dtype)

    @property
    def asked(self) -> Rounded | None:
        """The kernel of 8 bits, where there is one and what is traced now is to use it."""
        return self.eight if trace_options().quant else None

    @property
    def is_adapted(self) -> bool:
        """True if rows that are traced now may have adapters here."""
        return self.bank is not None and trace_options().adapters is not None


def adapted(layer: Linear, x: Array, out: Array) -> Array:
    """Add what the rows' adapters make of a layer's inputs to its outputs, of whatever shape.

    Args:
        x: [batch, *tokens, in].
    """
    rows = trace_options().adapters
    if layer.bank is None or rows is None:
        return out
    return layer.bank.added(out, layer.bank.change(x, rows, out.shape[x.ndim - 1 :]))


def by_kernel(
    layer: Linear, parts: Sequence[Float[Array, "batch tokens *_features"]], **how: Any
) -> Array | None:
    """Call `models.nn.quant.sharded.product_by_kernel`; None, too, for exact activations."""
    if layer.asked is None or trace_options().quant != "w8a8":
        return None
    bias = None if layer.bias is None else layer.bias[...]
    return product_by_kernel(layer.asked, parts, bias, **how)


def activated(
    layer: Linear, x: Float[Array, "batch tokens in_features"], activation: Activation
) -> Float[Array, "batch tokens out_features"]:
    """activation(layer(x)), in one go where the product is by a kernel of ours."""
    own = None if layer.is_adapted else by_kernel(layer, [x], activation=activation)
    return activation(layer(x)) if own is None else own


def of_joined(
    layer: Linear,
    parts: Sequence[
        Float[Array, "batch tokens _features"] | Float[Array, "batch tokens _heads _dim"]
    ],
) -> Float[Array, "batch tokens out_features"]:
    """layer(x), x being the parts side by side, which a kernel of ours need not have so."""
    own = by_kernel(layer, parts)
    if own is not None and not layer.is_adapted:
        return own
    flat = [part.reshape(*part.shape[:2], -1) for part in parts]
    joined = jnp.concatenate(flat, axis=-1)
    return layer(joined) if own is None else adapted(layer, joined, own)


def linear(
    in_features: int,
    out_features: int,
    axes: Axes,
    *,
    rngs: nnx.Rngs,
    use_bias: bool = True,
    param_dtype: DTypeLike = jnp.float32,
) -> Linear:
    """Build y = x W + b: kernel [in, out] with its logical axes; the bias follows the second."""
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
    upright: bool = False,
) -> Float[Array, "batch tokens heads dim"]:
    """layer(x), its features apart by heads.

    As one product with an axis of heads it may write them head by head, as attention reads them;
    behind a product without one the compiler copies, or turns the tokens round. Of both sides in
    8 bits it would turn the kernels of all layers instead, for each of them; a kernel of ours does
    as it is told.

    Args:
        upright: nothing but attention is to read them: each head's tokens side by side, then.
    """
    if layer.asked is not None and trace_options().quant == "w8a8":
        own = by_kernel(layer, [x], heads=heads, upright=upright)
        if own is None:
            return layer(x).reshape(*x.shape[:2], heads, -1)
        return adapted(layer, x, own)
    return adapted(layer, x, _by_heads(layer, x, (x.shape[-1], heads, -1), (heads, -1)))


def from_heads(
    layer: Linear, x: Float[Array, "batch tokens heads dim"]
) -> Float[Array, "batch tokens out_features"]:
    """layer(x), of features apart by heads, which need not come together in memory."""
    if layer.asked is not None and trace_options().quant == "w8a8":
        own = by_kernel(layer, [x])
        flat = x.reshape(*x.shape[:2], -1)
        return layer(flat) if own is None else adapted(layer, flat, own)
    flat = x.reshape(*x.shape[:2], -1)
    return adapted(layer, flat, _by_heads(layer, x, (*x.shape[2:], -1), (-1,)))


def _by_heads(
    layer: Linear, x: Array, features: tuple[int, ...], out_features: tuple[int, ...]
) -> Array:
    """Compute x W + b, of exact activations.

    Args:
        x: [batch, tokens, *in].
        features, out_features: shapes of W, [*in, *out], and of what is added: [*out].
    """
    eight = layer.asked
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


def _of_8_bits(kernel: Rounded) -> Num[Array, "in_features out_features"]:
    """Values as `_in_rows` has them.

    One layer's are taken from the stack before: the compiler of TPUs would copy the stack of all
    layers, for each of them.
    """
    return upright_values(_in_rows(kernel.values, jax.lax.optimization_barrier(kernel.values[...])))


def _in_rows(
    parameter: nnx.Param, kernel: Num[Array, "in_features out_features"]
) -> Num[Array, "in_features out_features"]:
    """Return that parameter's kernel, row by row in memory, as it is stored.

    For a product with an axis of heads a TPU's compiler turns it round first, and takes longer
    for the product then: 2.25 + 0.3 ms instead of 1.43 (18,900 tokens, 5,120 to 5,120, v6e).
    """
    return in_memory(_row_major, kernel, parameter)


def _row_major(kernel: Array) -> Array:
    return jax_internals.with_layout_constraint(kernel, jax_internals.ArrayLayout((0, 1)))


class Conv(nnx.Conv):
    """Convolution, channels last; `models.nn.layers.convolution` adds what adapters make of it."""

    bank: AdapterBank | None = None


def conv(
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
    """Channels-last convolution, kernel [*window, in, out]; `axes` are the last two's names."""
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
    """A table [count, features] looked up by id."""
    return nnx.Embed(
        count,
        features,
        embedding_init=_embedding,
        embedding_metadata={"axes": axes},
        param_dtype=param_dtype,
        rngs=rngs,
    )
