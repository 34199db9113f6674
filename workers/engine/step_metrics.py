"""Prometheus metrics of the steps of one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

import jax

from models.parallel.axis_rules import Layout
from workers import metrics
from workers.engine.batching import Batch
from workers.programs.bucket_programs import StepKind, is_ready
from workers.programs.step_latency import BatchLayout
from workers.slice.device_chip import known_chip

MAX_SHAPES = 16
"""Maximum number of buckets with their own label: those of the warm-up, then the first others.
Clients choose sizes freely, and each would create a time series."""
WHOLE = "one device"


class LabelValues:
    """Limit on a metric label's distinct values; others are labeled `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def name(self, value: str) -> str:
        """Return a metric label of a value; `other` once the limit is reached."""
        if len(self._names) < self._most:
            self._names.add(value)
        return value if value in self._names else metrics.OTHER


class StepMetrics:
    """Metrics of one engine, recorded by its step loop's thread.

    Args:
        layout_of: returns how the slice partitions a step of that batch layout.
    """

    def __init__(self, model: str, layout_of: Callable[[BatchLayout], Layout]) -> None:
        self._model = model
        self._layout_of = layout_of
        self._shapes = LabelValues(MAX_SHAPES)
        self._owed: WeakKeyDictionary[StepKind, int] = WeakKeyDictionary()
        """Steps per step kind whose FLOPs are still being counted."""

    def has(self, slots: int) -> None:
        """Set the metric of the engine's number of slots."""
        metrics.slots.labels(self._model).set(slots)

    def set_busy_slots(self, busy: int) -> None:
        """Set the metric of the engine's slots in use."""
        metrics.slots_busy.labels(self._model).set(busy)

    def waited(self, seconds: float) -> None:
        """Record seconds that the slice waited for the host."""
        metrics.device_wait.labels(self._model).inc(seconds)

    def step(self, batch: Batch, seconds: float) -> None:
        """Record one step of a batch, and the seconds it took."""
        model, batch_layout, rows = self._model, batch.batch_layout, len(batch.rows)
        shape = self._shapes.name(batch.step_kind.bucket or batch.rows[0].programs.bucket)
        layout = layout_name(self._layout_of(batch_layout))
        metrics.steps.labels(model, shape, layout).inc(rows)
        metrics.padding.labels(model).inc(batch_layout.size - rows)
        metrics.device_busy.labels(model).inc(seconds)
        metrics.step_seconds.labels(model, shape, layout, str(batch_layout.size)).observe(seconds)
        self._count(batch.step_kind, rows)

    def _count(self, step_kind: StepKind, rows: int) -> None:
        """Count the FLOPs of images' rows, without padding, once those per step are known."""
        self._owed[step_kind] = self._owed.get(step_kind, 0) + rows
        if step_kind.flops is not None and is_ready(step_kind.flops):
            metrics.flops.labels(self._model).inc(
                step_kind.flops.result() * self._owed.pop(step_kind)
            )


def layout_name(layout: Layout) -> str:
    """Format the mesh axes larger than 1 with their sizes: `cfg=2,ulysses=4`."""
    sizes = [f"{axis}={size}" for axis, size in layout.mesh.shape.items() if size > 1]
    return ",".join(sizes) or WHOLE


def rate(model: str, devices: Iterable[jax.Device]) -> None:
    """Export the slice's peak FLOPs per second, if known for all of its chips."""
    chips = [known_chip(device) for device in devices]
    rated = [chip.peak_flops for chip in chips if chip is not None]
    if rated and len(rated) == len(chips):
        metrics.peak_flops.labels(model).set(sum(rated))


def report_memory(devices: Iterable[jax.Device]) -> None:
    """Export the memory in use on this process's devices. Callable from any thread."""
    for device in devices:
        stats = device.memory_stats() or {}
        for kind, name in metrics.MEMORY_KINDS.items():
            if name in stats:
                metrics.device_memory.labels(str(device.id), kind).set(stats[name])
