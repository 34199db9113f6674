"""Estimated durations of the warm-up requests' programs on the devices of this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
"""Sides of the square matrices to multiply: doubled until a product takes `ENOUGH_S`."""
ENOUGH_S = 0.01


@dataclass(frozen=True)
class EstimatedTimes:
    """Estimated seconds of a warm-up request's programs."""

    trial_s: float
    """Seconds of its trial: `TRIALS` runs of each step kind, and one of every other pass."""
    encode_s: float
    step_s: float
    """The step kind with the most steps."""
    decode_s: float


def estimated_times(
    sketches: Sequence[Sketch],
    chosen: ChosenLayout,
    table: Table,
    devices: Sequence[jax.Device],
    dtype: str,
) -> tuple[EstimatedTimes, ...]:
    """Estimate the times of each request's programs.

    Args:
        sketches: traces of the requests.
        dtype: data type of the computation.
    """
    chip = measured(devices, dtype)
    return tuple(_times(item, chosen, chip, table) for item in sketches)


def _times(sketch: Sketch, chosen: ChosenLayout, chip: Chip, table: Table) -> EstimatedTimes:
    residency = chosen.residency
    alone = replace(sketch, second_pass=None)  # the trial has no second pass
    estimated = estimate(alone, chosen.shape, chip, launch=1, table=table, residency=residency)
    runs = {name: TRIALS if name in sketch.steps else 1 for name in estimated.passes}
    return EstimatedTimes(
        sum(estimated.passes[name].seconds * count for name, count in runs.items()),
        estimated.passes["encode"].seconds,
        estimated.step_s,
        estimated.passes["decode"].seconds,
    )


def measured(devices: Sequence[jax.Device], dtype: str) -> Chip:
    """Return the devices' chip; for an unknown chip, with a measured peak rate."""
    chip, local = chip_of(devices), _local_device(devices)
    if known_chip(local) is not None or is_described(local):
        return chip
    sharers = len(devices) if local.platform == "cpu" else 1  # virtual devices share the cores
    return replace(chip, peak_flops=flops_s(local, dtype) / sharers)


def _local_device(devices: Sequence[jax.Device]) -> jax.Device:
    return next(device for device in devices if device.process_index == jax.process_index())


@cache
def flops_s(device: jax.Device, dtype: str) -> float:
    """Measure the matrix product rate of a device in FLOP/s; takes tens of milliseconds."""
    product = jax.jit(jnp.matmul)
    side = FIRST_SIDE
    while True:
        matrix = jax.device_put(jnp.ones((side, side), dtype), device)
        product(matrix, matrix).block_until_ready()  # compile
        began = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        took_s = time.perf_counter() - began
        if took_s >= ENOUGH_S or side >= LAST_SIDE:
            return 2 * side**3 / took_s
        side *= 2
