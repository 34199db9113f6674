"""Latencies measured by this worker, by the queue's buckets.

Times are medians of the latest fifteen, so they follow a changing machine and ignore outliers. An
outlier is, for example, another image's encoding between two steps, which a mean would count twice.
(The choice of batch sizes uses the lower quartile, the device's time alone; but users also wait for
the host.) A bucket's step kinds and shapes are averaged, weighted by their steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean, median

from models.interface.adapters import requested_adapters
from models.interface.pipeline import Fields
from models.spec.model_spec import ModelSpec
from service.jobs.scheduling.cost_model import CostKey, CostRow, expected_s
from workers.engine.place import Place
from workers.engine.step_metrics import WHOLE
from workers.programs.batch_sizes import BatchSizes
from workers.programs.bucket_programs import BucketPrograms, StepKind, is_ready

MAX_BUCKETS = 32
"""Maximum number of buckets recorded; the least recently used is dropped, as in the program cache.
"""


class LatencyStats:
    """Recorded programs and measured costs of each bucket. Use it from one thread."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._buckets: dict[str, dict[str, BucketPrograms]] = {}
        """Programs by the queue's bucket, then by the engine's finer bucket; most recently used
        last."""
        self._work: dict[str, float] = {}
        """Work of a step per bucket, as a multiple of the step that its programs are timed for."""
        self._measured_compile_s: dict[str, float] = {}
        """Compile time measured by this worker, by bucket."""
        self.stored_compile_s: dict[str, float] = {}
        """Compile time of buckets whose programs are stored in files."""
        self.reported_compile_s: Mapping[str, float] = {}
        """Compile time reported by workers of the same kind, by bucket."""

    def bucket(self, fields: Fields) -> str | None:
        """Return the queue's bucket of a request; None: the request lacks a field that forms it."""
        has_all = all(name in fields for name in self._spec.bucket_fields)
        return self._spec.bucket(fields, requested_adapters(fields)) if has_all else None

    def uses(self, fields: Fields, programs: BucketPrograms) -> None:
        """Record that an image of this request uses these programs."""
        bucket = self.bucket(fields)
        if bucket is None:
            return
        shapes = self._buckets.pop(bucket, {})
        self._buckets[bucket] = shapes | {programs.bucket: programs}
        self._work[bucket] = 1 + self._spec.control_work(fields)
        if len(self._buckets) > MAX_BUCKETS:
            longest_unused = next(iter(self._buckets))
            del self._buckets[longest_unused], self._work[longest_unused]

    @property
    def warm(self) -> list[str]:
        """Buckets with compiled programs, the most recently used first."""
        return [
            b for b, shapes in reversed(self._buckets.items()) if any(map(is_warm, shapes.values()))
        ]

    @property
    def available(self) -> tuple[str, ...]:
        """Buckets that need no compilation, at most `MAX_BUCKETS`; those in memory first."""
        return tuple(dict.fromkeys([*self.warm, *self.stored_compile_s]))[:MAX_BUCKETS]

    def is_compiled(self, bucket: str) -> bool:
        """Return whether programs of this bucket are compiled, in memory or in files."""
        return bucket in self.available

    def compiled(self, bucket: str, seconds: float) -> None:
        """Record how long compiling a bucket's programs took.

        The largest value counts: compilations for another solver may be smaller.
        """
        self._measured_compile_s[bucket] = max(seconds, self._measured_compile_s.pop(bucket, 0.0))
        if len(self._measured_compile_s) > MAX_BUCKETS:
            del self._measured_compile_s[next(iter(self._measured_compile_s))]

    def expected_s(self, bucket: str) -> float | None:
        """Return the expected compile time of a bucket's programs; None: unknown."""
        return expected_s(
            {**self.reported_compile_s, **self.stored_compile_s, **self._measured_compile_s}, bucket
        )

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return the measured costs per bucket, layout and batch size."""
        costs = {}
        for bucket, shapes in self._buckets.items():
            compile_s = self._measured_compile_s.get(bucket, self.stored_compile_s.get(bucket))
            for size, row in _rows(shapes.values(), devices).items():
                update = {"compile_s": compile_s, "step_s": row.step_s * self._work[bucket]}
                costs[CostKey(bucket, layout, size)] = row.model_copy(update=update)
        return costs


def is_warm(programs: BucketPrograms) -> bool:
    """Return whether every program that a request needs is compiled in memory."""
    return bool(programs.encoders) and all(map(is_ready, programs.necessary()))


def describe(pool: str, place: Place, batching: BatchSizes) -> str:
    """Return the label of a kind of worker, under which measurements are comparable.

    Made of the pool's name, its devices, mesh axes, and exact batching: measurements with several
    batch sizes do not apply to it.
    """
    axes = [] if place.layout == WHOLE else place.layout.split(",")
    exact = [batching.label] if batching.is_exact else []
    return ", ".join([f"{pool} on {place.kind}", *axes, *exact])


def _rows(shapes: Iterable[BucketPrograms], devices: int) -> dict[int, CostRow]:
    """Return a bucket's costs by batch size; for several layouts of one size, the one in use."""
    measured = [programs for programs in shapes if programs.decode_times.median is not None]
    weights = {
        programs: sum(p.times.steps for p in programs.step_kinds.values()) for programs in measured
    }
    if not sum(weights.values()):
        return {}
    encode_s = _mean((weights[s], s.encode_times.median or 0.0) for s in measured)
    decode_s = _mean((weights[s], s.decode_times.median or 0.0) for s in measured)
    steps = _step_seconds(
        [step_kind for programs in measured for step_kind in programs.step_kinds.values()]
    )
    samples = sum(weights.values())
    return {
        size: CostRow(
            step_s=step_s, encode_s=encode_s, decode_s=decode_s, devices=devices, samples=samples
        )
        for size, step_s in steps.items()
    }


def _step_seconds(step_kinds: Iterable[StepKind]) -> dict[int, float]:
    """Return a bucket's step times by batch size: the mean over all step kinds."""
    times: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for step_kind in step_kinds:
        for size, seconds in _fastest(step_kind).items():
            times[size].append((step_kind.times.steps, seconds))
    return {size: _mean(pairs) for size, pairs in times.items()}


def _fastest(step_kind: StepKind) -> dict[int, float]:
    # Step caching mixes full and skipped steps; a median would represent only one of them.
    usual = fmean if step_kind.program.cache else median
    fastest: dict[int, float] = {}
    for batch_layout, times in step_kind.times.measured().items():
        fastest[batch_layout.size] = min(usual(times), fastest.get(batch_layout.size, math.inf))
    return fastest


def _mean(weighted: Iterable[tuple[int, float]]) -> float:
    pairs = list(weighted)
    return sum(w * value for w, value in pairs) / sum(w for w, _ in pairs)
