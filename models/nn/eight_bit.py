"""Matrix products in 8 bits, by qwix: scales for each channel of the weights and each token.

Only the blocks of a network, its stacked layers, and only products of tokens: embeddings, norms,
modulations and the last layer stay as they are. Weights are quantised inside the step's program,
from the same ones that exact steps use: so a pool serves both without a second copy. That reads
each weight once more than a step with weights of 8 bits would.

Source: Dettmers et al. 2022 (LLM.int8()), section 2, vector-wise quantisation; Micikevicius et al.
2022 (FP8 Formats for Deep Learning) for e4m3.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models import sharding

FLOATS_FROM = 8.9
"""CUDA's compute capability from which products of 8-bit floats are as fast as int8's: Ada, Hopper.
They need no rounding to equal steps, so they come first there."""

_asked: ContextVar[bool] = ContextVar("eight_bit", default=False)
_inside: ContextVar[bool] = ContextVar("inside_blocks", default=False)


@contextmanager
def eight_bit(wanted: bool = True) -> Iterator[None]:
    """What is traced in here has the products of its blocks in 8 bits, if that is wanted."""
    token = _asked.set(wanted)
    try:
        yield
    finally:
        _asked.reset(token)


@contextmanager
def in_blocks() -> Iterator[None]:
    """What is traced in here is a block's."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def product(
    x: Float[Array, ...],
    kernel: Float[Array, ...],
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    **how: Any,
) -> Float[Array, ...]:
    """`jax.lax.dot_general` of activations and weights: in 8 bits where that is asked for."""
    if not (_asked.get() and _inside.get() and x.ndim > 2):
        return jax.lax.dot_general(
            x,
            kernel,
            dimension_numbers,
            precision=precision,
            preferred_element_type=preferred_element_type,
            **how,
        )
    return quantised(x, kernel, dimension_numbers)


def quantised(
    x: Float[Array, ...], kernel: Float[Array, ...], dimension_numbers: Any
) -> Float[Array, ...]:
    """The product of both, each rounded to 8 bits along what is summed over, in the dtype of x."""
    import qwix  # two seconds, for those who ask

    chip = device()
    kind = kind_of(chip and chip.platform, getattr(chip, "compute_capability", "0"))
    (of_x, of_kernel), _ = dimension_numbers
    rounded = [
        qwix.quantize(
            array,
            kind,
            channelwise_axes=[axis for axis in range(array.ndim) if axis not in summed],
            scale_dtype=jnp.float32,
        )
        for array, summed in ((x, of_x), (kernel, of_kernel))
    ]
    return qwix.dot_general(*rounded, dimension_numbers).astype(x.dtype)


def device() -> jax.Device | None:
    """The one that is traced for; None where only shapes are asked for."""
    layout = sharding.active()
    if layout is None:
        return jax.devices()[0]
    if not isinstance(layout.mesh, jax.sharding.Mesh):
        return None
    return layout.mesh.devices.flat[0]  # type: ignore[no-any-return]


def kind_of(platform: str | None, capability: str = "0") -> Any:
    """The 8-bit numbers that such a device multiplies fast.

    Args:
        capability: CUDA's, of a GPU.
    """
    floats = platform == "gpu" and float(capability) >= FLOATS_FROM
    return jnp.float8_e4m3fn if floats else jnp.int8
