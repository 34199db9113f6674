"""Cost model: the table that pools measure, and predictions from it.

A row holds for one bucket, on one layout of one kind of pool, in batches of one size. All seconds
are of a whole mesh slice, however many devices it has.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from models.spec.model_spec import READ_FRAMES, READ_PX

VOLUME_FIELDS = ("width", "height", "num_frames")
"""Fields of a bucket whose product work is proportional to, with what each step reads beside."""
STANDS_S, TRIED_SHARE = 60.0, 0.05
"""Lifetime of a cost that nobody measures again; and the maximum share of a pool's time that goes
into trying it."""
MAX_COSTS = 4096
"""Rows of one model's table; those measured longest ago leave."""


class CostKey(NamedTuple):
    """Key of a measured cost."""

    bucket: str
    layout: str
    """Names the kind of pool, its devices and how they split the work: equal pools share rows."""
    batch: int
    """Images that are stepped together."""

    def wire(self) -> str:
        """Return the key as a field of Redis's hash."""
        return json.dumps(self)

    @classmethod
    def parse(cls, text: str) -> CostKey:
        """Return the key of such a field."""
        bucket, layout, batch = json.loads(text)
        return cls(bucket, layout, batch)


class CostRow(BaseModel):
    """Measured cost."""

    model_config = ConfigDict(frozen=True)

    step_s: float = Field(gt=0)
    """Seconds of one step of the whole batch."""
    encode_s: float = Field(ge=0)
    """Seconds of one image, as the next one: encoding its text and images; the VAE."""
    decode_s: float = Field(ge=0)
    devices: int = 1
    """Number of devices of the slice."""
    compile_s: float | None = Field(default=None, ge=0)
    """Time until an image of the bucket could begin that had no programs; None: it always had
    them."""
    samples: int = 1
    """Steps that it was measured on."""
    at: float = 0.0
    """Time at which the table got it, by Redis's clock."""


@dataclass(frozen=True)
class PoolFacts:
    """Description that a pool announces of itself."""

    layout: str
    slots: int
    """Images that it denoises together."""
    warm: tuple[str, ...] = ()
    """Buckets that it need not compile: it has their programs, or finds them in files."""
    adapters: tuple[str, ...] = ()
    """Digests of the adapters that its device has."""
    adapter_s: float = 0.0
    """Seconds that it takes to load another one."""
    away_s: float = 0.0
    """Seconds until a job could begin at all: of a model whose weights are not on the devices."""
    asleep: bool = False
    """True while no model is on the devices until a job comes."""


@dataclass(frozen=True)
class Cost:
    """Cost of one request on the fastest pool that is there."""

    seconds: float
    """Alone: encoding, all steps, decoding."""
    device_seconds: float
    """Share of the slice where batches are as large as pays: encoding, steps, decoding."""
    decode_s: float
    """Part of `seconds` that comes after the last step."""
    scaled: float = 1.0
    """Size relative to the bucket that it was predicted from; 1: it was measured."""
    at: float = field(default=0.0, compare=False)
    """Time of the last measurement, by Redis's clock."""

    def longer(self, tail_s: float) -> Cost:
        """Return the cost of what takes so many seconds more behind its decoding."""
        if not tail_s:
            return self
        return replace(
            self,
            seconds=self.seconds + tail_s,
            device_seconds=self.device_seconds + tail_s,
            decode_s=self.decode_s + tail_s,
        )

    def then(self, other: Cost) -> Cost:
        """Return the cost of one pass and then another."""
        return Cost(
            seconds=self.seconds + other.seconds,
            device_seconds=self.device_seconds + other.device_seconds,
            decode_s=other.decode_s,
            scaled=min(self.scaled, other.scaled),
            at=min(self.at, other.at),
        )

    @property
    def stands_s(self) -> float:
        """Lifetime without a new measurement."""
        return max(STANDS_S, self.seconds / TRIED_SHARE)


@dataclass(frozen=True)
class Timing:
    """Timing of one bucket on one layout."""

    encode_s: float
    decode_s: float
    step_s: Mapping[int, float]
    """Seconds a step by batch size."""
    at: float = 0.0
    """Time of the last measurement, by Redis's clock."""

    def scaled(self, ratio: float) -> Timing:
        """Return the cost of a bucket so many times as large.

        Steps and decoding in proportion to pixels times frames, encoding as it is. (Images that
        steps read are not decoded: an edit's decoding is said to be too long until it is measured.)

        Attention grows by the square, so what is predicted upwards is too little and downwards too
        much, by `ratio` at the most: Wan 14B from 480p to 720p takes 3.9 times the work where this
        says 2.3. The nearest bucket is taken, and one request later the true one is known.
        """
        steps = {size: seconds * ratio for size, seconds in self.step_s.items()}
        return Timing(self.encode_s, self.decode_s * ratio, steps, self.at)

    def cost(self, steps: int, images: int, scaled: float = 1.0) -> Cost:
        """Cost of so many images; `steps` is over all of them."""
        around_s = images * (self.encode_s + self.decode_s)
        sweep_s = min(math.ceil(images / size) * s for size, s in self.step_s.items())
        share_s = min(seconds / size for size, seconds in self.step_s.items())
        return Cost(
            seconds=around_s + steps / images * sweep_s,
            device_seconds=around_s + steps * share_s,
            decode_s=images * self.decode_s,
            scaled=scaled,
            at=self.at,
        )


@dataclass(frozen=True)
class CostTable:
    """Measurements of one model."""

    rows: Mapping[CostKey, CostRow] = field(default_factory=dict)
    """Rows stay when their pools leave: a fleet may scale from zero."""
    pools: Mapping[str, PoolFacts] = field(default_factory=dict)
    """Ready pools that describe themselves, by name."""
    at: float = field(default=0.0, compare=False)
    """Time at which it was read, by Redis's clock."""

    def is_doubtful(self, cost: Cost) -> bool:
        """Return whether a pool that is there may well be faster than that cost.

        It was measured long ago, or scaled down from a larger size, which says too much.
        """
        return bool(self.pools) and (cost.scaled < 1 or self.at - cost.at > cost.stands_s)

    def predict(self, bucket: str, steps: int, images: int) -> Cost | None:
        """Predict the cost of a job on the ready pool that is the fastest at it.

        Without any ready pool on the fastest that there was. None: nothing is known that would
        tell.

        Args:
            steps: over all images, as `Job.steps`.
        """
        there = self._ready & self.timings.keys()
        costs = [self.predict_on(name, bucket, steps, images) for name in there or self.timings]
        return min((cost for cost in costs if cost), key=lambda cost: cost.seconds, default=None)

    def predict_passes(self, passes: Sequence[tuple[str, int]], images: int) -> Cost | None:
        """Predict the cost of a job of one or several passes, each of a bucket and its steps."""
        key = (*passes, images)
        if key not in self._predicted:
            costs = [self.predict(bucket, steps, images) for bucket, steps in passes]
            known = [cost for cost in costs if cost]
            whole = reduce(Cost.then, known) if len(known) == len(costs) else None
            self._predicted[key] = whole
        return self._predicted[key]

    @cached_property
    def _predicted(self) -> dict[tuple[object, ...], Cost | None]:
        """Predictions by passes and images: a table lasts a moment, in which requests are alike."""
        return {}

    def predict_on(self, layout: str, bucket: str, steps: int, images: int) -> Cost | None:
        """Run `predict` on the pools of one layout."""
        found = self._nearest(layout, bucket)
        return found and found[0].cost(steps, images, found[1])

    def _nearest(self, layout: str, bucket: str) -> tuple[Timing, float] | None:
        """Return the timing of the bucket, or of the nearest size, scaled; and the ratio."""
        timings = self.timings.get(layout, {})
        if bucket in timings:
            return timings[bucket], 1.0
        if (volume := volume_of(bucket)) is None:
            return None
        ratios = {name: volume / v for name in timings if (v := volume_of(name))}
        nearest = min(ratios, key=lambda name: abs(math.log(ratios[name])), default=None)
        if nearest is None:
            return None
        return timings[nearest].scaled(ratios[nearest]), ratios[nearest]

    def compile_s(self, bucket: str) -> float:
        """Seconds that compiling a bucket's programs takes: none where a ready pool has them.

        Of a bucket that nobody has compiled, what others take in the median; 0 where nothing is
        known.
        """
        if not self.pools or any(bucket in pool.warm for pool in self.pools.values()):
            return 0.0
        expected = (expected_s(self.compiled.get(layout, {}), bucket) for layout in self._ready)
        return min((seconds for seconds in expected if seconds is not None), default=0.0)

    def load_s(self, adapters: Iterable[str]) -> float:
        """Seconds that loading adapters takes on the ready pool that lacks fewest of them.

        Args:
            adapters: digests.
        """
        wanted = set(adapters)
        seconds = (
            pool.adapter_s * len(wanted.difference(pool.adapters)) for pool in self.pools.values()
        )
        return min(seconds, default=0.0)

    @cached_property
    def compiled(self) -> Mapping[str, Mapping[str, float]]:
        """Compile times by layout and bucket."""
        found: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for key, row in self.rows.items():
            if row.compile_s is not None:
                found[key.layout][key.bucket] = row.compile_s
        return dict(found)

    def unit_s(self, bucket: str) -> float:
        """Seconds of one unit of a bucket that is not of steps, on the fastest ready pool.

        0 where nothing is known.
        """
        there = self._ready & self.timings.keys() or self.timings.keys()
        known = [self.timings[name][bucket] for name in there if bucket in self.timings[name]]
        return min(map(_alone_s, known), default=0.0)

    def slowness(self, layout: str) -> float:
        """Return how many times as long a step takes there as on the fastest ready pool.

        The median over the buckets that both have measured or, where there are none, of all; 1
        where nothing tells. Of the ready pools, one is the fastest, whatever each is best at.
        """
        medians = [self._median(other) for other in {*self._ready, layout}]
        return self._median(layout) / min(medians)

    def slowness_by_bucket(self, layout: str) -> Mapping[str, float]:
        """The same of each bucket that it and another ready pool have measured."""
        others = self._ready - {layout}
        found = {}
        for bucket, mine in self.timings.get(layout, {}).items():
            known = [self.timings[o][bucket] for o in others if bucket in self.timings.get(o, ())]
            if known:
                found[bucket] = max(1.0, _alone_s(mine) / min(map(_alone_s, known)))
        return found

    def _median(self, layout: str) -> float:
        ratios = self.slowness_by_bucket(layout) or self._by_size(layout)
        return median(ratios.values()) if ratios else 1.0

    def _by_size(self, layout: str) -> Mapping[str, float]:
        """Compute `slowness_by_bucket` against the nearest sizes of other layouts."""
        found = {}
        for bucket, mine in self.timings.get(layout, {}).items():
            near = [self._nearest(other, bucket) for other in self._ready - {layout}]
            if known := [_alone_s(one[0]) for one in near if one]:
                found[bucket] = max(1.0, _alone_s(mine) / min(known))
        return found

    @cached_property
    def _ready(self) -> frozenset[str]:
        """Layouts of the ready pools."""
        return frozenset(pool.layout for pool in self.pools.values())

    @cached_property
    def timings(self) -> Mapping[str, Mapping[str, Timing]]:
        """Timings by layout and bucket."""
        grouped: defaultdict[tuple[str, str], dict[int, CostRow]] = defaultdict(dict)
        for key, row in self.rows.items():
            grouped[key.layout, key.bucket][key.batch] = row
        found: defaultdict[str, dict[str, Timing]] = defaultdict(dict)
        for (layout, bucket), rows in grouped.items():
            newest = max(rows.values(), key=lambda row: row.at)
            steps = {batch: row.step_s for batch, row in rows.items()}
            found[layout][bucket] = Timing(newest.encode_s, newest.decode_s, steps, newest.at)
        return dict(found)


def _alone_s(timing: Timing) -> float:
    return timing.step_s[min(timing.step_s)]


def expected_s(compiled: Mapping[str, float], bucket: str) -> float | None:
    """Expected time of compiling a bucket, by what it or others took; it hardly depends on size."""
    return compiled.get(bucket, median(compiled.values()) if compiled else None)


def volume_of(bucket: str) -> int | None:
    """Pixels that a step of a bucket computes: of all frames, and of images that it reads.

    As `ModelSpec.bucket` writes them; None: it does not say.
    """
    parts = (part.partition("=") for part in bucket.split(","))
    counted = (*VOLUME_FIELDS, READ_PX, READ_FRAMES)
    said = {name: value for name, _, value in parts if name in counted}
    if not {"width", "height"} <= said.keys() or not all(v.isdecimal() for v in said.values()):
        return None
    read_px, read_frames = (int(said.pop(name, 0)) for name in (READ_PX, READ_FRAMES))
    if read_frames:
        said["num_frames"] = str(int(said.get("num_frames", 1)) + read_frames)
    drawn_px = math.prod(int(value) for value in said.values())
    return drawn_px + read_px if drawn_px else None


def confirmed(
    rows: Mapping[CostKey, CostRow],
    reported: Mapping[CostKey, CostRow],
    table: CostTable,
    age_s: float,
) -> dict[CostKey, CostRow]:
    """Return the rows that were measured again since they were recorded.

    Of which the table has nothing that is newer than that.
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
    """The rows that differ from what was told by more than that share, or were not told."""
    return {key: row for key, row in rows.items() if _differs(row, reported.get(key), by)}


def _differs(row: CostRow, old: CostRow | None, by: float) -> bool:
    if old is None:
        return True
    pairs: Iterable[tuple[float, float]] = (
        (row.step_s, old.step_s),
        (row.encode_s, old.encode_s),
        (row.decode_s, old.decode_s),
        (row.compile_s or 0.0, old.compile_s or 0.0),
    )
    return any(abs(new - before) > by * before for new, before in pairs)
