"""Latencies that this pool has measured, by the queue's buckets.

Times are medians of the latest fifteen. They follow a machine that changes; and what now and then
holds one up does not count, such as a neighbour's encoding or decoding between two steps: that has
times of its own, and would be counted twice in a mean. (What chooses batch sizes takes the lower
quartile, the device alone; but people wait for the host, too.) Phases and shapes of one
bucket are averaged by their steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean, median

from models.interface.adapters import requested_adapters
from models.interface.pipeline import Fields
from models.parallel.axis_rules import Layout
from models.spec.model_spec import ModelSpec
from service.jobs.scheduling.cost_model import CostKey, CostRow, expected_s
from workers.programs.batch_sizes import BatchSizes
from workers.programs.bucket_programs import BucketPrograms, Phase, is_ready

MAX_BUCKETS = 32
"""Kept; the longest unused one makes room, as among compiled shapes."""


class LatencyStats:
    """Programs of each bucket, and their costs. To be used from one thread."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._buckets: dict[str, dict[str, BucketPrograms]] = {}
        """Programs by the queue's bucket and by the engine's, which knows more; last used last."""
        self._work: dict[str, float] = {}
        """Work of a step of each, as a multiple of what its programs take for the usual one."""
        self._compiled: dict[str, float] = {}
        """Compile time measured here, by bucket."""
        self.in_files: dict[str, float] = {}
        """The same of buckets whose programs lie in files."""
        self.elsewhere: Mapping[str, float] = {}
        """The same, as pools of this kind have told it."""

    def bucket(self, fields: Fields) -> str | None:
        """The queue's, of a request; None: it lacks fields that make one."""
        has_all = all(name in fields for name in self._spec.bucket_fields)
        return self._spec.bucket(fields, requested_adapters(fields)) if has_all else None

    def uses(self, fields: Fields, programs: BucketPrograms) -> None:
        """An image of this request needs that programs now."""
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
        """Buckets that are compiled, the last used one first."""
        return [
            b for b, shapes in reversed(self._buckets.items()) if any(map(is_warm, shapes.values()))
        ]

    @property
    def at_hand(self) -> tuple[str, ...]:
        """Buckets that need not be compiled, as many as are kept; those that are first."""
        return tuple(dict.fromkeys([*self.warm, *self.in_files]))[:MAX_BUCKETS]

    def is_compiled(self, bucket: str) -> bool:
        """Return whether programs of this bucket lie compiled."""
        return bucket in self.at_hand

    def compiled(self, bucket: str, seconds: float) -> None:
        """Record how long compiling a bucket's programs took.

        The longest counts: others of it, such as a scheduler's, may be fewer.
        """
        self._compiled[bucket] = max(seconds, self._compiled.pop(bucket, 0.0))
        if len(self._compiled) > MAX_BUCKETS:
            del self._compiled[next(iter(self._compiled))]

    def expected_s(self, bucket: str) -> float | None:
        """Return the expected compile time of a bucket's programs; None: unknown."""
        return expected_s({**self.elsewhere, **self.in_files, **self._compiled}, bucket)

    def rows(self, layout: str, devices: int) -> dict[CostKey, CostRow]:
        """Return the costs known by now."""
        found = {}
        for bucket, shapes in self._buckets.items():
            compile_s = self._compiled.get(bucket, self.in_files.get(bucket))
            for size, row in _rows(shapes.values(), devices).items():
                update = {"compile_s": compile_s, "step_s": row.step_s * self._work[bucket]}
                found[CostKey(bucket, layout, size)] = row.model_copy(update=update)
        return found


def is_warm(programs: BucketPrograms) -> bool:
    """Return whether everything that a request needs is compiled."""
    return bool(programs.encoders) and all(map(is_ready, programs.necessary()))


def describe(pool: str, layout: Layout, batching: BatchSizes) -> str:
    """Return the name of a kind of pool.

    By its settings, its devices, how they split the work, and how many images they step at once:
    what was measured with more sizes does not hold with one.
    """
    mesh = layout.mesh
    axes = [f"{axis}={size}" for axis, size in mesh.shape.items() if size > 1]
    exact = [batching.label] if batching.is_exact else []
    return ", ".join([f"{pool} on {mesh.devices.flat[0].device_kind}", *axes, *exact])


def _rows(shapes: Iterable[BucketPrograms], devices: int) -> dict[int, CostRow]:
    """Rows by batch size; of several layouts for one size, the one that the steps take."""
    measured = [programs for programs in shapes if programs.decode_times.median is not None]
    weights = {
        programs: sum(p.times.steps for p in programs.phases.values()) for programs in measured
    }
    if not sum(weights.values()):
        return {}
    encode_s = _mean((weights[s], s.encode_times.median or 0.0) for s in measured)
    decode_s = _mean((weights[s], s.decode_times.median or 0.0) for s in measured)
    steps = _step_seconds([phase for programs in measured for phase in programs.phases.values()])
    samples = sum(weights.values())
    return {
        size: CostRow(
            step_s=step_s, encode_s=encode_s, decode_s=decode_s, devices=devices, samples=samples
        )
        for size, step_s in steps.items()
    }


def _step_seconds(phases: Iterable[Phase]) -> dict[int, float]:
    """Step times by batch size: the mean over the steps of all phases that know it."""
    times: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for phase in phases:
        for size, seconds in _fastest(phase).items():
            times[size].append((phase.times.steps, seconds))
    return {size: _mean(known) for size, known in times.items()}


def _fastest(phase: Phase) -> dict[int, float]:
    # Whole steps and those that leave most out are of two kinds: a median would know but one.
    usual = fmean if phase.program.cache else median
    found: dict[int, float] = {}
    for batch_layout, times in phase.times.known().items():
        found[batch_layout.size] = min(usual(times), found.get(batch_layout.size, math.inf))
    return found


def _mean(weighted: Iterable[tuple[int, float]]) -> float:
    pairs = list(weighted)
    return sum(w * value for w, value in pairs) / sum(w for w, _ in pairs)
