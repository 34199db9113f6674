"""Matrix products with 8-bit weights, and with exact or 8-bit activations.

Weights are rounded once, when they are loaded, with a scale per channel. A layer stores them next
to its exact weights or instead of them. Activations are rounded at each use, by qwix, with a scale
per token. Only layers of a network's blocks have 8-bit weights: embeddings, norms and the last
layer do not. Layers that compute modulations round only their weights: their input is one vector
per image, so reading the weights dominates. `TraceOptions.quant` selects the products of a trace.

Source: Dettmers et al. 2022 (LLM.int8()), section 2, vector-wise quantisation; Micikevicius et al.
2022 (FP8 Formats for Deep Learning) for e4m3.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from models.parallel.trace_options import trace_options

FLOATS_FROM = 8.9
"""CUDA compute capability from which products of 8-bit floats are as fast as int8's: Ada, Hopper.
Floats need no rounding to equal steps, so they are preferred there."""


class EightBitKernel(nnx.Module):
    """Kernel of a linear layer with 8-bit values and scales.

    `values` [*, in, out], or [*, out, in] of floats (`has_inputs_last`), and `scale` [*, out] of
    each column in float32.
    """

    def __init__(self, values: nnx.Param[Any], scale: nnx.Param[Any]) -> None:
        self.values, self.scale = values, scale


def has_inputs_last(kind: Any) -> bool:
    """Return whether kernels of this number type are stored with their inputs last.

    cuBLASLt multiplies 8-bit floats only in this layout. Otherwise XLA would transpose a whole
    stack of kernels before the loop over its layers, once per step, and store both.
    """
    return bool(jnp.issubdtype(kind, jnp.floating))


def inputs_first(values: Num[Array, "_rows _columns"]) -> Num[Array, "in out"]:
    """Return 8-bit kernel values as [in, out], transposed if necessary."""
    return values.T if has_inputs_last(values.dtype) else values


def weight_only(
    x: Float[Array, "*batch in"], values: Num[Array, "_rows _columns"], scale: Float[Array, " out"]
) -> Float[Array, "*batch out"]:
    """Multiply exact activations by an 8-bit kernel; in the dtype of x.

    8-bit values are exact in every dtype of activations, so only their rounding lost precision.
    Sums are scaled in float32, because unscaled sums may be too large for float16.
    """
    out = jnp.matmul(x, inputs_first(values).astype(x.dtype), preferred_element_type=jnp.float32)
    return scaled(out, scale, x.dtype)


def scaled(sums: Float[Array, "*rows"], scale: Float[Array, "*columns"], dtype: DTypeLike) -> Array:
    """Scale the float32 sums of products of 8-bit values, and cast them."""
    return (sums * scale).astype(dtype)


def product(
    x: Float[Array, "*batch in"], values: Num[Array, "_rows _columns"], scale: Float[Array, " out"]
) -> Float[Array, "*batch out"]:
    """Multiply activations, rounded here by token, by an 8-bit kernel; in the dtype of x."""
    import qwix  # takes two seconds

    *tokens, features = range(x.ndim)
    rounded = qwix.quantize(x, values.dtype, channelwise_axes=tokens, scale_dtype=jnp.float32)
    if has_inputs_last(values.dtype):
        return _of_floats(rounded.qvalue, rounded.scale, values, scale, x.dtype)
    kernel = qwix.QArray(values, scale[None])
    scaled_sums: Array = qwix.dot_general(rounded, kernel, (((features,), (0,)), ((), ()))).astype(
        x.dtype
    )
    return scaled_sums


def _of_floats(
    x: Float[Array, "*batch in"],
    of_tokens: Float[Array, "*batch 1"],
    values: Float[Array, "out in"],
    of_columns: Float[Array, " out"],
    dtype: DTypeLike,
) -> Float[Array, "*batch out"]:
    """Multiply float8 values as cuBLASLt does, with sums in float32.

    For bfloat16, which has float32's range, the sums are written in bfloat16 before they are
    scaled: the next pass reads half as much.
    """
    written = jnp.bfloat16 if dtype == jnp.bfloat16 else jnp.float32
    sums = jax.lax.dot_general(
        x, values, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=written
    )
    return (sums.astype(jnp.float32) * of_tokens * of_columns).astype(dtype)


def multiplied(x: Float[Array, "*batch in"], kernel: EightBitKernel) -> Float[Array, "*batch out"]:
    """Multiply by an 8-bit kernel as the trace's options select; in the dtype of x."""
    multiply = product if trace_options().quant == "w8a8" else weight_only
    return multiply(x, kernel.values[...], kernel.scale[...])


def kind_of(platform: str | None, capability: str = "0") -> Any:
    """Return the 8-bit number type that a device multiplies fast.

    Args:
        capability: CUDA compute capability of a GPU.
    """
    floats = platform == "gpu" and float(capability) >= FLOATS_FROM
    return jnp.float8_e4m3fn if floats else jnp.int8
