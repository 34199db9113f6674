"""Matrix products with weights of 8 bits, and with activations as they are or rounded too.

Weights lie there in 8 bits, with a scale for each of their channels: they are rounded once, when
they are loaded, and a layer has them beside its exact ones or in their place. Activations are
rounded where they are used, by qwix, with a scale for each token. Only layers of a network's blocks
have such weights: embeddings, norms and the last layer do not. Of what modulates the blocks weights
alone are rounded: it is one vector an image, which a product waits for less than for its weights.
`TraceOptions.quant` says which products a trace has.

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
"""CUDA's compute capability from which products of 8-bit floats are as fast as int8's: Ada, Hopper.
They need no rounding to equal steps, so they come first there."""


class Rounded(nnx.Module):
    """A kernel in 8 bits.

    `values` [*, in, out], or [*, out, in] of floats (`is_turned`), and `scale` [*, out] of each
    column in float32.
    """

    def __init__(self, values: nnx.Param, scale: nnx.Param) -> None:
        self.values, self.scale = values, scale


def is_turned(kind: Any) -> bool:
    """Return whether kernels of these numbers lie with their inputs last.

    cuBLASLt multiplies floats of 8 bits no other way: XLA would turn a whole stack of kernels in
    front of the loop over its layers, once a step, and keep both.
    """
    return bool(jnp.issubdtype(kind, jnp.floating))


def upright_values(values: Num[Array, "_rows _columns"]) -> Num[Array, "in out"]:
    """Return the values with their inputs first, however they lie."""
    return values.T if is_turned(values.dtype) else values


def weight_only(
    x: Float[Array, "*batch in"], values: Num[Array, "_rows _columns"], scale: Float[Array, " out"]
) -> Float[Array, "*batch out"]:
    """Multiply exact activations by a rounded kernel; in the dtype of x.

    Values of 8 bits are the same in every dtype of activations: what is lost was lost when they
    were rounded. Sums are scaled in float32, as unscaled ones may be too large for float16.
    """
    out = jnp.matmul(x, upright_values(values).astype(x.dtype), preferred_element_type=jnp.float32)
    return scaled(out, scale, x.dtype)


def scaled(sums: Float[Array, "*rows"], scale: Float[Array, "*columns"], dtype: DTypeLike) -> Array:
    """Sums in float32 of such values' products, as the product that they stand for."""
    return (sums * scale).astype(dtype)


def product(
    x: Float[Array, "*batch in"], values: Num[Array, "_rows _columns"], scale: Float[Array, " out"]
) -> Float[Array, "*batch out"]:
    """Multiply activations, each token rounded here, by a rounded kernel; in the dtype of x."""
    import qwix  # two seconds, for those who ask

    *tokens, features = range(x.ndim)
    rounded = qwix.quantize(x, values.dtype, channelwise_axes=tokens, scale_dtype=jnp.float32)
    if is_turned(values.dtype):
        return _of_floats(rounded.qvalue, rounded.scale, values, scale, x.dtype)
    kernel = qwix.QArray(values, scale[None])
    return qwix.dot_general(rounded, kernel, (((features,), (0,)), ((), ()))).astype(x.dtype)


def _of_floats(
    x: Float[Array, "*batch in"],
    of_tokens: Float[Array, "*batch 1"],
    values: Float[Array, "out in"],
    of_columns: Float[Array, " out"],
    dtype: DTypeLike,
) -> Float[Array, "*batch out"]:
    """Multiply floats as cuBLASLt does, summed in float32, whatever is written.

    In bfloat16, whose range is float32's, the sums are written so before they are scaled: half of
    what the next pass reads.
    """
    written = jnp.bfloat16 if dtype == jnp.bfloat16 else jnp.float32
    sums = jax.lax.dot_general(
        x, values, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=written
    )
    return (sums.astype(jnp.float32) * of_tokens * of_columns).astype(dtype)


def multiplied(x: Float[Array, "*batch in"], kernel: Rounded) -> Float[Array, "*batch out"]:
    """The product that the trace's options name; in the dtype of x."""
    multiply = product if trace_options().quant == "w8a8" else weight_only
    return multiply(x, kernel.values[...], kernel.scale[...])


def kind_of(platform: str | None, capability: str = "0") -> Any:
    """The 8-bit numbers that such a device multiplies fast.

    Args:
        capability: CUDA's, of a GPU.
    """
    floats = platform == "gpu" and float(capability) >= FLOATS_FROM
    return jnp.float8_e4m3fn if floats else jnp.int8
