"""Comparison of Atelier's own kernels with plain ones on a device, before a worker uses them.

No chip has run these kernels yet: they are compiled for TPUs and interpreted on CPUs. So each
worker compares them once when it starts, and uses the plain ones where they differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from models.nn.kernels.int8_matmul import OfStack, Product, eight_bit_for
from models.nn.kernels.kernel import Kernel
from models.nn.kernels.select import kernel_for, uses_transposed_kernel
from models.nn.kernels.xla import xla_kernel
from workers.slice.device_chip import is_described

log = logging.getLogger(__name__)

QUERIES, KEYS, HEADS = 600, 700, 2
"""Sizes of the compared attention. Neither number of tokens fills its last block."""
HEAD_DIMS = (64, 128)
LOUD = 8.0
"""Scale of the queries: some keys then have nearly all of a query's weight."""
TOKENS, FEATURES = 300, 512
"""Sizes of the compared product."""
ATTENTION_ERROR, PRODUCT_ERROR = 0.015, 0.03
"""Maximum difference in root mean square, relative to the plain result. Interpreted on a CPU, the
differences are 0.0023 and 0.0077: rounding to bfloat16, and of activations to 8 bits."""

Choice = Literal["plain", "experimental"]


class Kernels(NamedTuple):
    """Kernels of attention and of 8-bit products that a device uses."""

    attention: Kernel
    eight_bit: Product | None
    """Product in 8 bits; None: XLA's."""


def usable_kernels(device: jax.Device, dtype: DTypeLike, choice: Choice) -> Kernels:
    """Return a device's chosen kernels; plain ones replace those that fail a numeric check.

    Nothing is compared on a device that a compiler only describes.

    Args:
        dtype: of activations.
    """
    attention = kernel_for(device, dtype, experimental=choice == "experimental")
    eight_bit = eight_bit_for(device.device_kind) if choice == "experimental" else None
    if choice == "plain" or is_described(device):
        return Kernels(attention, eight_bit)
    if uses_transposed_kernel(device, dtype) and not _passes(
        "attention", lambda: attention_error(attention, dtype, device), ATTENTION_ERROR
    ):
        attention = kernel_for(device, dtype, experimental=False)
    product = eight_bit
    if product and not _passes(
        "the product in 8 bits", lambda: product_error(product, dtype, device), PRODUCT_ERROR
    ):
        eight_bit = None
    return Kernels(attention, eight_bit)


def _passes(name: str, measure: Callable[[], float], most: float) -> bool:
    try:
        error = measure()
    except Exception as failure:  # compilers and devices raise arbitrary errors
        log.error("the experimental kernel of %s failed, the plain one runs: %s", name, failure)
        return False
    if error <= most:  # not for NaN
        log.info("the experimental kernel of %s differs by %.2g from the plain one", name, error)
        return True
    log.error(
        "the experimental kernel of %s differs by %.2g (at most %g) from the plain one, which runs "
        "instead",
        *(name, error, most),
    )
    return False


def attention_error(kernel: Kernel, dtype: DTypeLike, device: jax.Device) -> float:
    """Return the difference of a kernel's attention from XLA's in float32, for any head."""
    return max(_attention_error(kernel, dtype, device, dim) for dim in HEAD_DIMS)


def _attention_error(kernel: Kernel, dtype: DTypeLike, device: jax.Device, dim: int) -> float:
    rng = np.random.default_rng(dim)
    shapes = ((1, QUERIES, HEADS, dim), (1, KEYS, HEADS, dim), (1, KEYS, HEADS, dim))
    q, k, v = (jnp.asarray(rng.normal(size=shape), dtype, device=device) for shape in shapes)
    keys = jnp.asarray(np.arange(KEYS) < KEYS - dim, device=device)
    scale = dim**-0.5

    def attended(kernel: Kernel, dtype: DTypeLike) -> Any:
        arrays = ((LOUD * q).astype(dtype), k.astype(dtype), v.astype(dtype))
        with jax.default_matmul_precision("highest"):
            return jax.jit(partial(kernel, scale=scale, keys=keys))(*arrays).values

    return _difference(attended(kernel, dtype), attended(xla_kernel, jnp.float32))


def product_error(product: Product, dtype: DTypeLike, device: jax.Device) -> float:
    """Return the difference of an 8-bit product from one of exact activations."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(TOKENS, FEATURES)), dtype, device=device)
    values = jnp.asarray(rng.integers(-127, 128, (FEATURES, FEATURES)), jnp.int8, device=device)
    columns = jnp.asarray(rng.uniform(0.5, 1.5, FEATURES), jnp.float32, device=device)
    kernel = OfStack(values[None], jnp.zeros((), jnp.int32, device=device))
    with jax.default_matmul_precision("highest"):
        expected = x.astype(jnp.float32) @ values.astype(jnp.float32) * columns
    return _difference(jax.jit(product)([x], kernel, columns, None), expected)


def _difference(output: Array, expected: Array) -> float:
    exact = np.asarray(expected, np.float32)
    error = np.asarray(output, np.float32) - exact
    return float(np.sqrt(np.mean(error**2) / np.mean(exact**2)))
