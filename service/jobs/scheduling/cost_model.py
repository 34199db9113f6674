"""Cost model: a table of costs that workers measure, and predictions from it.

A row is valid for one bucket, one layout of one kind of worker, and one batch size. All seconds are
of a whole mesh slice, however many devices it has.
"""

from __future__ import annotations

import json
import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from models.spec.model_spec import READ_FRAMES, READ_PX

VOLUME_FIELDS = ("width", "height", "num_frames")
"""Fields of a bucket whose product, plus the inputs that each step reads, is proportional to
work."""
MIN_VALID_S, MAX_TRIAL_SHARE = 60.0, 0.05
"""Minimum lifetime of a cost without a new measurement, and the maximum share of a worker's time
spent on re-measuring costs."""
MAX_COSTS = 4096
"""Maximum number of rows of one model's table; those measured longest ago are removed."""


class CostKey(NamedTuple):
    """Key of a measured cost: layout, bucket and batch size."""

    bucket: str
    layout: str
    """Kind of worker: its devices and how they partition the work. Equal workers share rows."""
    batch: int
    """Number of images that are denoised together."""

    def wire(self) -> str:
        """Return the cost key as a field of Redis's hash."""
        return json.dumps(self)

    @classmethod
    def parse(cls, text: str) -> CostKey:
        """Parse a cost key from a field of Redis's hash."""
        bucket, layout, batch = json.loads(text)
        return cls(bucket, layout, batch)


class CostRow(BaseModel):
    """Measured cost of a bucket on one layout, at one batch size."""

    model_config = ConfigDict(frozen=True)

    step_s: float = Field(gt=0)
    """Seconds of one step of the whole batch."""
    encode_s: float = Field(ge=0)
    """Seconds per image for encoding its text and images."""
    decode_s: float = Field(ge=0)
    """Seconds per image for the VAE's decoding."""
    devices: int = 1
    """Number of devices of the slice."""
    compile_s: float | None = Field(default=None, ge=0)
    """Seconds until an image could start when its programs had to be compiled; None: they never had
    to be."""
    samples: int = 1
    """Number of steps that were measured; 0: an estimate by the operations of its programs."""
    at: float = 0.0
    """Time at which the row was stored, by Redis's clock."""


@dataclass(frozen=True)
class PoolFacts:
    """Description that a worker announces of itself."""

    layout: str
    slots: int
    """Number of images that it denoises together."""
    warm: tuple[str, ...] = ()
    """Buckets that it need not compile: their programs are loaded or cached in files."""
    adapters: tuple[str, ...] = ()
    """Digests of the adapters on its device."""
    adapter_s: float = 0.0
    """Seconds to load another adapter."""
    away_s: float = 0.0
    """Seconds until a job could start, if the model's weights are not on the devices."""
    asleep: bool = False
    """True if no model is on the devices until a job arrives."""


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one request on the fastest ready worker."""

    seconds: float
    """Duration alone on the worker: encoding, all steps, decoding."""
    device_seconds: float
    """Share of the slice's time at the most efficient batch size: encoding, steps, decoding."""
    decode_s: float
    """Part of `seconds` after the last step."""
    scaled: float = 1.0
    """Size relative to the measured bucket; 1: this bucket itself was measured."""
    at: float = field(default=0.0, compare=False)
    """Time of the last measurement, by Redis's clock."""
    is_estimated: bool = False
    """Whether a part of it is derived from an estimate, not from measurements."""

    def with_tail(self, tail_s: float) -> Cost:
        """Return the cost with extra seconds after decoding."""
        if not tail_s:
            return self
        return replace(
            self,
            seconds=self.seconds + tail_s,
            device_seconds=self.device_seconds + tail_s,
            decode_s=self.decode_s + tail_s,
        )

    def followed_by(self, other: Cost) -> Cost:
        """Return the cost of this pass followed by another."""
        return Cost(
            seconds=self.seconds + other.seconds,
            device_seconds=self.device_seconds + other.device_seconds,
            decode_s=other.decode_s,
            scaled=min(self.scaled, other.scaled),
            at=min(self.at, other.at),
            is_estimated=self.is_estimated or other.is_estimated,
        )

    @property
    def valid_s(self) -> float:
        """Time for which a measured cost is used without a new measurement."""
        return max(MIN_VALID_S, self.seconds / MAX_TRIAL_SHARE)


@dataclass(frozen=True)
class Timing:
    """Step, encode and decode times of one bucket on one layout."""

    encode_s: float
    decode_s: float
    step_s: Mapping[int, float]
    """Seconds per step by batch size."""
    at: float = 0.0
    """Time of the last measurement, by Redis's clock."""
    is_estimated: bool = False
    """Whether it was never measured."""

    def scaled(self, ratio: float) -> Timing:
        """Extrapolate to a bucket `ratio` times as large.

        Steps and decoding scale with pixels times frames; encoding is constant. (Input images that
        steps read are not decoded. The decoding of an edit is therefore overestimated until it is
        measured.)

        Attention grows quadratically, so larger buckets are underestimated and smaller ones
        overestimated, by at most `ratio`: Wan 14B from 480p to 720p takes 3.9 times the work where
        this returns 2.3. The nearest bucket is used, and the first request yields a measurement.
        """
        steps = {size: seconds * ratio for size, seconds in self.step_s.items()}
        return replace(self, decode_s=self.decode_s * ratio, step_s=steps)

    def cost(self, steps: int, images: int, scaled: float = 1.0) -> Cost:
        """Return the cost of several images; `steps` is summed over all of them."""
        around_s = images * (self.encode_s + self.decode_s)
        sweep_s = min(math.ceil(images / size) * s for size, s in self.step_s.items())
        share_s = min(seconds / size for size, seconds in self.step_s.items())
        return Cost(
            seconds=around_s + steps / images * sweep_s,
            device_seconds=around_s + steps * share_s,
            decode_s=images * self.decode_s,
            scaled=scaled,
            at=self.at,
            is_estimated=self.is_estimated,
        )


class BucketSize(NamedTuple):
    """Bucket with the pixels that its steps compute."""

    volume: int
    bucket: str


@dataclass(frozen=True)
class CostTable:
    """Measured costs of one model and its ready workers, with the predictions from them."""

    rows: Mapping[CostKey, CostRow] = field(default_factory=dict)
    """Measured costs. Rows outlive their workers, since a fleet may scale from zero."""
    pools: Mapping[str, PoolFacts] = field(default_factory=dict)
    """Ready workers with a description, by name."""
    at: float = field(default=0.0, compare=False)
    """Time at which it was read, by Redis's clock."""

    def is_doubtful(self, cost: Cost) -> bool:
        """Return whether a ready worker may well be faster than that cost.

        True if it was not measured, if the measurement is old, or if it was scaled down from a
        larger size, which overestimates.
        """
        is_old = self.at - cost.at > cost.valid_s
        return bool(self.pools) and (cost.is_estimated or cost.scaled < 1 or is_old)

    def predict(self, bucket: str, steps: int, images: int) -> Cost | None:
        """Predict the cost of a job on the ready worker that is the fastest at it.

        Measurements precede estimates. If no ready worker was measured, the fastest measured layout
        is used. None: nothing that allows a prediction is known.

        Args:
            steps: summed over all images, as in `Job.steps`.
        """
        layouts = self._ready & self.timings.keys()
        costs = [self.predict_on(name, bucket, steps, images) for name in layouts or self.timings]
        predicted = [cost for cost in costs if cost]
        return min(predicted, key=lambda cost: (cost.is_estimated, cost.seconds), default=None)

    def predict_passes(self, passes: Sequence[tuple[str, int]], images: int) -> Cost | None:
        """Predict the cost of a job with one or several passes, each a bucket with its steps."""
        key = (*passes, images)
        if key not in self._predicted:
            costs = [self.predict(bucket, steps, images) for bucket, steps in passes]
            predicted = [cost for cost in costs if cost]
            total = reduce(Cost.followed_by, predicted) if len(predicted) == len(costs) else None
            self._predicted[key] = total
        return self._predicted[key]

    @cached_property
    def _predicted(self) -> dict[tuple[object, ...], Cost | None]:
        """Cache of cost predictions by passes and images; a table serves few requests."""
        return {}

    def predict_on(self, layout: str, bucket: str, steps: int, images: int) -> Cost | None:
        """Predict the cost of a job on the workers of one layout."""
        nearest = self._nearest(layout, bucket)
        return nearest and nearest[0].cost(steps, images, nearest[1])

    def _nearest(self, layout: str, bucket: str) -> tuple[Timing, float] | None:
        """Return the bucket's timing, or the nearest size's one scaled, with the ratio of sizes."""
        timings = self.timings.get(layout, {})
        if bucket in timings:
            return timings[bucket], 1.0
        if (volume := volume_of(bucket)) is None:
            return None
        sizes = self._sizes.get(layout, ())
        after = bisect(sizes, volume, key=lambda size: size.volume)
        near = sizes[max(0, after - 1) : after + 1]
        nearest = min(near, key=lambda size: abs(math.log(volume / size.volume)), default=None)
        if nearest is None:
            return None
        ratio = volume / nearest.volume
        return timings[nearest.bucket].scaled(ratio), ratio

    @cached_property
    def _sizes(self) -> Mapping[str, Sequence[BucketSize]]:
        """Sizes whose timings predict others, ascending: measured ones, if a layout has any."""
        sizes = {}
        for layout, timings in self.timings.items():
            volumes: dict[int, str] = {}
            for bucket in self.measured(layout) or timings:
                if volume := volume_of(bucket):
                    volumes.setdefault(volume, bucket)
            sizes[layout] = [BucketSize(*item) for item in sorted(volumes.items())]
        return sizes

    def compile_s(self, bucket: str) -> float:
        """Predict the compile time of a bucket; 0 if a ready worker has its programs.

        For a bucket that was never compiled, this is the median of others; 0 if unknown.
        """
        if not self.pools or any(bucket in pool.warm for pool in self.pools.values()):
            return 0.0
        expected = (expected_s(self.compiled.get(layout, {}), bucket) for layout in self._ready)
        return min((seconds for seconds in expected if seconds is not None), default=0.0)

    def load_s(self, adapters: Iterable[str]) -> float:
        """Predict the time to load adapters on the ready worker that lacks the fewest of them.

        Args:
            adapters: digests.
        """
        needed = set(adapters)
        seconds = (
            pool.adapter_s * len(needed.difference(pool.adapters)) for pool in self.pools.values()
        )
        return min(seconds, default=0.0)

    @cached_property
    def compiled(self) -> Mapping[str, Mapping[str, float]]:
        """Compile times by layout and bucket."""
        times: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for key, row in self.rows.items():
            if row.compile_s is not None:
                times[key.layout][key.bucket] = row.compile_s
        return dict(times)

    def unit_s(self, bucket: str) -> float:
        """Return the seconds per unit of a bucket without steps, on the fastest ready worker.

        0 if unknown.
        """
        layouts = self._ready & self.timings.keys() or self.timings.keys()
        timings = [self.timings[name][bucket] for name in layouts if bucket in self.timings[name]]
        return min(map(_alone_s, timings), default=0.0)

    def slowness(self, layout: str) -> float:
        """Return a layout's step time relative to the fastest ready worker.

        The median over the buckets that both have measured or, without any, over extrapolated ones;
        1 if unknown. At least one ready layout has slowness 1, whatever each is best at.
        """
        medians = [self._median(other) for other in {*self._ready, layout}]
        return self._median(layout) / min(medians)

    def slowness_by_bucket(self, layout: str) -> Mapping[str, float]:
        """Return the slowness by bucket that both this and another ready layout have measured."""
        others = self._ready - {layout}
        slowness = {}
        for bucket, mine in self.measured(layout).items():
            timings = [self.measured(o)[bucket] for o in others if bucket in self.measured(o)]
            if timings:
                slowness[bucket] = max(1.0, _alone_s(mine) / min(map(_alone_s, timings)))
        return slowness

    def _median(self, layout: str) -> float:
        ratios = self.slowness_by_bucket(layout) or self._by_size(layout)
        return median(ratios.values()) if ratios else 1.0

    def _by_size(self, layout: str) -> Mapping[str, float]:
        """Compute `slowness_by_bucket` against the nearest image sizes of other layouts."""
        slowness = {}
        for bucket, mine in self.measured(layout).items():
            others = [other for other in self._ready - {layout} if self.measured(other)]
            near = [self._nearest(other, bucket) for other in others]
            if seconds := [_alone_s(timing[0]) for timing in near if timing]:
                slowness[bucket] = max(1.0, _alone_s(mine) / min(seconds))
        return slowness

    @cached_property
    def _ready(self) -> frozenset[str]:
        """Layouts of the ready workers."""
        return frozenset(pool.layout for pool in self.pools.values())

    def measured(self, layout: str) -> Mapping[str, Timing]:
        """Return the measured timings of a layout by bucket."""
        return self._measured.get(layout, {})

    @cached_property
    def _measured(self) -> Mapping[str, Mapping[str, Timing]]:
        """Measured timings by layout and bucket."""
        return {
            layout: {name: timing for name, timing in timings.items() if not timing.is_estimated}
            for layout, timings in self.timings.items()
        }

    @cached_property
    def timings(self) -> Mapping[str, Mapping[str, Timing]]:
        """Timings by layout and bucket."""
        grouped: defaultdict[tuple[str, str], dict[int, CostRow]] = defaultdict(dict)
        for key, row in self.rows.items():
            grouped[key.layout, key.bucket][key.batch] = row
        timings: defaultdict[str, dict[str, Timing]] = defaultdict(dict)
        for (layout, bucket), rows in grouped.items():
            measured = {batch: row for batch, row in rows.items() if row.samples}
            newest = max((measured or rows).values(), key=lambda row: row.at)
            timings[layout][bucket] = Timing(
                newest.encode_s,
                newest.decode_s,
                {batch: row.step_s for batch, row in (measured or rows).items()},
                newest.at,
                is_estimated=not measured,
            )
        return dict(timings)


def _alone_s(timing: Timing) -> float:
    return timing.step_s[min(timing.step_s)]


def expected_s(compiled: Mapping[str, float], bucket: str) -> float | None:
    """Predict a bucket's compile time: its own, or the median of others, as size hardly matters."""
    return compiled.get(bucket, median(compiled.values()) if compiled else None)


@lru_cache(maxsize=8192)
def volume_of(bucket: str) -> int | None:
    """Return the pixels that a step of a bucket computes, of all frames and of input images.

    Parses buckets written by `ModelSpec.bucket`; None: the bucket has no size.
    """
    parts = (part.partition("=") for part in bucket.split(","))
    counted = (*VOLUME_FIELDS, READ_PX, READ_FRAMES)
    sizes = {name: value for name, _, value in parts if name in counted}
    if not {"width", "height"} <= sizes.keys() or not all(v.isdecimal() for v in sizes.values()):
        return None
    read_px, read_frames = (int(sizes.pop(name, 0)) for name in (READ_PX, READ_FRAMES))
    if read_frames:
        sizes["num_frames"] = str(int(sizes.get("num_frames", 1)) + read_frames)
    drawn_px = math.prod(int(value) for value in sizes.values())
    return drawn_px + read_px if drawn_px else None


def confirmed(
    rows: Mapping[CostKey, CostRow],
    reported: Mapping[CostKey, CostRow],
    table: CostTable,
    age_s: float,
) -> dict[CostKey, CostRow]:
    """Return cost rows with new samples since their report, if the table's row is old.

    Workers report these although their values have hardly changed.

    Args:
        age_s: age of the table's row above which it is refreshed.
    """
    return {
        key: row
        for key, row in rows.items()
        if key in reported
        and row.samples > reported[key].samples
        and table.at - table.rows[key].at > age_s
    }


def changed(
    rows: Mapping[CostKey, CostRow], reported: Mapping[CostKey, CostRow], by: float
) -> dict[CostKey, CostRow]:
    """Return cost rows that were not reported, or that changed by more than the share `by`."""
    return {key: row for key, row in rows.items() if _differs(row, reported.get(key), by)}


def _differs(row: CostRow, old: CostRow | None, by: float) -> bool:
    if old is None or bool(old.samples) != bool(row.samples):
        return True
    pairs: Iterable[tuple[float, float]] = (
        (row.step_s, old.step_s),
        (row.encode_s, old.encode_s),
        (row.decode_s, old.decode_s),
        (row.compile_s or 0.0, old.compile_s or 0.0),
    )
    return any(abs(new - before) > by * before for new, before in pairs)
