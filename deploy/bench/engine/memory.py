"""Memory of each device that a run took: by its runtime, or by the compiler's own count."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from models.interface.pipeline import PyTree


@dataclass(frozen=True)
class Memory:
    """Memory of the device that has most."""

    weights_bytes: int
    peak_bytes: int
    by: Literal["device", "compiler"]
    """Source of the peak. The device's runtime: all that this process ever had at once. The
    compiler: the weights, and what the largest program has beside them."""
    limit_bytes: int | None


def memory_of(devices: Sequence[jax.Device], weights: PyTree, programs: Iterable[Any]) -> Memory:
    """Return the memory after a run of these compiled programs."""
    held = weights_bytes(weights)
    stats = [device.memory_stats() or {} for device in devices]
    peaks = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
    limits = [stat["bytes_limit"] for stat in stats if "bytes_limit" in stat]
    limit = min(limits) if limits else None
    if peaks:
        return Memory(held, max(peaks), "device", limit)
    return Memory(held, held + max(map(beside_weights, programs), default=0), "compiler", limit)


def weights_bytes(weights: PyTree) -> int:
    """Return bytes on each device; networks that lie on the host do not count."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(weights)
        if isinstance(leaf, jax.Array) and leaf.sharding.memory_kind != "pinned_host"
    )


def beside_weights(program: Any) -> int:
    """Return the bytes that a program makes. Its own inputs are small."""
    found = inspect.unwrap(program).memory_analysis()
    return int(found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes)
