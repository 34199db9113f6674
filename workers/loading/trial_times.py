"""Estimates of what it takes to try the warm-up requests out on the devices that are there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp

from models.parallel.axis_rules import Table
from workers.loading.layout import ChosenLayout
from workers.plan.estimate import estimate
from workers.plan.trace import Sketch
from workers.programs.step_latency import TRIALS
from workers.slice.chips import Chip
from workers.slice.device_chip import chip_of, is_described, known_chip

FIRST_SIDE, LAST_SIDE = 512, 8192
"""Sides of the square matrices that are multiplied: doubled until a product takes `ENOUGH_S`."""
ENOUGH_S = 0.01


def trial_s(
    sketches: Sequence[Sketch],
    chosen: ChosenLayout,
    table: Table,
    devices: Sequence[jax.Device],
    dtype: str,
) -> tuple[float, ...]:
    """Estimate each request's trial: `TRIALS` steps of each phase, and what is around them.

    Args:
        sketches: of the requests.
        dtype: that they are computed in.
    """
    chip = measured(devices, dtype)
    return tuple(_seconds(one, chosen, chip, table) for one in sketches)


def _seconds(sketch: Sketch, chosen: ChosenLayout, chip: Chip, table: Table) -> float:
    residency = chosen.residency
    alone = replace(sketch, second=None)  # a second pass is not tried
    found = estimate(alone, chosen.shape, chip, launch=1, table=table, residency=residency)
    runs = {name: TRIALS if name in sketch.steps else 1 for name in found.passes}
    return sum(found.passes[name].seconds * count for name, count in runs.items())


def measured(devices: Sequence[jax.Device], dtype: str) -> Chip:
    """Return the chip of the devices, with a measured rate where nobody rates it."""
    chip, own = chip_of(devices), _own(devices)
    if known_chip(own) is not None or is_described(own):
        return chip
    together = len(devices) if own.platform == "cpu" else 1  # virtual ones share the cores
    return replace(chip, peak_flops=flops_s(own, dtype) / together)


def _own(devices: Sequence[jax.Device]) -> jax.Device:
    return next(one for one in devices if one.process_index == jax.process_index())


@cache
def flops_s(device: jax.Device, dtype: str) -> float:
    """Measure the rate of matrix products on a device, in FLOP a second; tens of milliseconds."""
    product = jax.jit(jnp.matmul)
    side = FIRST_SIDE
    while True:
        matrix = jax.device_put(jnp.ones((side, side), dtype), device)
        product(matrix, matrix).block_until_ready()  # compiles
        began = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        took_s = time.perf_counter() - began
        if took_s >= ENOUGH_S or side >= LAST_SIDE:
            return 2 * side**3 / took_s
        side *= 2
