"""Device memory of a benchmark run, by the runtime or by the compiler's analysis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from models.interface.pipeline import PyTree
from workers.programs.prompt_part import compiled_programs


@dataclass(frozen=True)
class Memory:
    """Device memory of a benchmark run, on the device that uses most."""

    weights_bytes: int
    peak_bytes: int
    by: Literal["device", "compiler"]
    """Source of the peak. The device's runtime: this process's maximum at any time. The compiler:
    the weights, and the temporaries and outputs of the largest program."""
    limit_bytes: int | None


def memory_of(devices: Sequence[jax.Device], weights: PyTree, programs: Iterable[Any]) -> Memory:
    """Return the memory after a run of these compiled programs."""
    resident = weights_bytes(weights)
    stats = [device.memory_stats() or {} for device in devices]
    peaks = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
    limits = [stat["bytes_limit"] for stat in stats if "bytes_limit" in stat]
    limit = min(limits) if limits else None
    if peaks:
        return Memory(resident, max(peaks), "device", limit)
    return Memory(
        resident, resident + max(map(allocated_bytes, programs), default=0), "compiler", limit
    )


def weights_bytes(weights: PyTree) -> int:
    """Return the weight bytes on each device, without networks in host memory."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(weights)
        if isinstance(leaf, jax.Array) and leaf.sharding.memory_kind != "pinned_host"
    )


def allocated_bytes(program: Any) -> int:
    """Return the bytes that a program allocates. Its inputs other than weights are small."""
    analyses = [each.memory_analysis() for each in compiled_programs(program)]
    return max(
        int(each.temp_size_in_bytes + each.output_size_in_bytes - each.alias_size_in_bytes)
        for each in analyses
    )
