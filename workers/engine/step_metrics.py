"""Step metrics: what the steps of one engine add up to, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from weakref import WeakKeyDictionary

import jax

from models.parallel.axis_rules import Layout
from workers import metrics
from workers.engine.batching import Batch
from workers.programs.bucket_programs import Phase
from workers.programs.step_latency import BatchLayout
from workers.slice.device_chip import known_chip

MAX_SHAPES = 16
"""Maximum number of buckets with labels of their own: those of the warm-up, and the next ones.
Clients choose sizes as they like, and each would be a series."""
WHOLE = "one device"


class LabelValues:
    """The first so many values of a label; any further one is called `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def name(self, value: str) -> str:
        """Return the label of a value; `other` once there are too many."""
        if len(self._names) < self._most:
            self._names.add(value)
        return value if value in self._names else metrics.OTHER


class StepMetrics:
    """Metrics of one engine; to be fed by its step loop's thread.

    Args:
        layout_of: how the slice splits a step of that batch layout.
    """

    def __init__(self, model: str, layout_of: Callable[[BatchLayout], Layout]) -> None:
        self._model = model
        self._layout_of = layout_of
        self._shapes = LabelValues(MAX_SHAPES)
        self._owed: WeakKeyDictionary[Phase, int] = WeakKeyDictionary()
        """Steps of images whose operations are being counted still."""

    def has(self, slots: int) -> None:
        """Report the number of slots."""
        metrics.slots.labels(self._model).set(slots)

    def set_busy_slots(self, pictures: int) -> None:
        """Report the number of slots in use."""
        metrics.slots_busy.labels(self._model).set(pictures)

    def waited(self, seconds: float) -> None:
        """The slice, for the host."""
        metrics.device_wait.labels(self._model).inc(seconds)

    def step(self, batch: Batch, seconds: float) -> None:
        """The batch took the slice this long."""
        model, batch_layout, rows = self._model, batch.batch_layout, len(batch.rows)
        shape = self._shapes.name(batch.phase.bucket or batch.rows[0].programs.bucket)
        layout = layout_name(self._layout_of(batch_layout))
        metrics.steps.labels(model, shape, layout).inc(rows)
        metrics.padding.labels(model).inc(batch_layout.size - rows)
        metrics.device_busy.labels(model).inc(seconds)
        metrics.step_seconds.labels(model, shape, layout, str(batch_layout.size)).observe(seconds)
        self._count(batch.phase, rows)

    def _count(self, phase: Phase, rows: int) -> None:
        """The operations of the images' own rows, as soon as somebody knows how many that is."""
        self._owed[phase] = self._owed.get(phase, 0) + rows
        if phase.flops is not None and has_result(phase.flops):
            metrics.flops.labels(self._model).inc(phase.flops.result() * self._owed.pop(phase))


def has_result(future: Future[float]) -> bool:
    """Return whether the future has a result."""
    return future.done() and not future.cancelled() and future.exception() is None


def layout_name(layout: Layout) -> str:
    """The mesh axes that split something, with their sizes: `cfg=2,ulysses=4`."""
    sizes = [f"{axis}={size}" for axis, size in layout.mesh.shape.items() if size > 1]
    return ",".join(sizes) or WHOLE


def rate(model: str, devices: Iterable[jax.Device]) -> None:
    """Tell what the slice's chips could do at best, where that is known of all of them."""
    chips = [known_chip(device) for device in devices]
    rated = [chip.peak_flops for chip in chips if chip is not None]
    if rated and len(rated) == len(chips):
        metrics.peak_flops.labels(model).set(sum(rated))


def report_memory(devices: Iterable[jax.Device]) -> None:
    """Report the memory in use on this process's devices. From any thread."""
    for device in devices:
        stats = device.memory_stats() or {}
        for kind, name in metrics.MEMORY_KINDS.items():
            if name in stats:
                metrics.device_memory.labels(str(device.id), kind).set(stats[name])
