"""Reference rate of the devices: a large matrix product, timed in the same run.

Vendors' peak rates assume clocks that a chip under load does not sustain. A share of them depends
on the cooling as much as on the program. This rate is attainable here and now.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array

from models.loading.random_weights import GOLDEN, uniform
from models.parallel.axis_rules import auto_mesh

SIDES = (512, 1024, 2048, 4096, 8192, 16384)
"""Sides of the square matrices. The largest takes 1.6 GB in bfloat16."""
LONG_S = 0.001
"""Duration of a product that fills the device; larger ones are no faster. At 790 TFLOP/s the first
such side is 8192."""
PRODUCTS = 8
"""Number of chained products per call, so that call overhead is negligible."""


@dataclass(frozen=True)
class Rate:
    """Measured rate of square matrix products."""

    side: int
    dtype: str
    devices: int
    flops: tuple[float, ...]
    """FLOP/s of all devices together, for each repeat."""

    @property
    def typical(self) -> float:
        """Median FLOP/s of the repeated products."""
        return median(self.flops)


def matrix_rate(
    devices: Sequence[jax.Device], dtype: DTypeLike, repeats: int, side: int | None = None
) -> Rate:
    """Time one product per device, on all devices at once.

    Args:
        side: None: the first of `SIDES` that takes longer than `LONG_S`.
    """
    if side is None:
        side = next((n for n in SIDES if _seconds(devices, dtype, n, 1)[0] > LONG_S), SIDES[-1])
    seconds = _seconds(devices, dtype, side, repeats)
    work = 2.0 * side**3 * len(devices)
    return Rate(
        side, str(jnp.dtype(dtype)), len(devices), tuple(work / product_s for product_s in seconds)
    )


def _seconds(
    devices: Sequence[jax.Device], dtype: DTypeLike, side: int, repeats: int
) -> list[float]:
    """Return the seconds of one product, for each repeat after compilation."""
    mesh = auto_mesh(list(devices), ("device",))
    place = NamedSharding(mesh, PartitionSpec("device"))
    shape = (len(devices), side, side)
    # Mean 0 and variance 1/side keep products of products bounded. Constant numbers or zeros would
    # take less power, and so be faster than real ones.
    draw, reach = uniform(shape, jnp.dtype(dtype), place), np.float32(math.sqrt(3 / side))
    left, right = (draw(np.uint32(seed), reach, np.float32(0)) for seed in (0, GOLDEN))
    program = jax.jit(_products, out_shardings=place).lower(left, right).compile()
    jax.block_until_ready(program(left, right))
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(program(left, right))
        seconds.append((time.perf_counter() - started) / PRODUCTS)
    return seconds


def _products(left: Array, right: Array) -> Array:
    product: Array = jax.lax.fori_loop(
        0, PRODUCTS, lambda _, x: jnp.einsum("dij,djk->dik", x, right), left
    )
    return product
