"""Prometheus histograms with classic buckets and native (exponential) buckets.

Text pages and pushes contain only the classic buckets, as the Prometheus client writes them. Pages
in protobuf contain both (`service/metrics/protobuf.py`).
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import prometheus_client
from prometheus_client import Metric

SCHEMA = 3
"""Initial schema of a series: bounds are 9 % apart."""
MAX_BUCKETS = 160
"""Maximum number of buckets of a series; beyond that, its schema is lowered."""
ZERO_THRESHOLD = 2.0**-128
"""Absolute value up to which a value counts as 0. Source: the Prometheus client for Go."""

_PARTS: int = 2**SCHEMA
_BOUNDS = tuple(2.0 ** (part / _PARTS - 1) for part in range(_PARTS))
"""Bounds in [0.5, 1), the range of the fractions of `math.frexp`."""
_INFINITE = sys.float_info.max_exp * _PARTS + 1
"""Bucket of infinity: the one after the greatest float's."""


@dataclass(frozen=True)
class BucketCounts:
    """Consistent copy of the native histogram buckets of one series."""

    count: int
    """Number of observations. NaN is counted here but in no bucket."""
    sum: float
    schema: int
    zeros: int
    positive: Mapping[int, int]
    """Number of observations by bucket, in the order of the bounds."""
    negative: Mapping[int, int]
    """The same for negative values, by the buckets of their absolute values."""


class NativeBuckets:
    """Thread-safe native histogram buckets of one series."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._sum = 0.0
        self._coarser = 0
        """Number of times that the resolution was halved."""
        self._zeros = 0
        self._positive: dict[int, int] = {}
        self._negative: dict[int, int] = {}

    def observe(self, value: float) -> None:
        """Count one observation in the native histogram buckets."""
        size = abs(value)
        with self._lock:
            self._count += 1
            self._sum += value
            if size > ZERO_THRESHOLD:
                buckets = self._positive if value > 0 else self._negative
                index = -(-_index(size) >> self._coarser)  # rounded up
                if index in buckets:
                    buckets[index] += 1
                else:
                    buckets[index] = 1
                    self._bound()
            elif size <= ZERO_THRESHOLD:
                self._zeros += 1

    def counts(self) -> BucketCounts:
        """Return a copy of the histogram's current bucket counts."""
        with self._lock:
            return BucketCounts(
                self._count,
                self._sum,
                SCHEMA - self._coarser,
                self._zeros,
                dict(sorted(self._positive.items())),
                dict(sorted(self._negative.items())),
            )

    def _bound(self) -> None:
        """Halve the resolution until at most `MAX_BUCKETS` are used.

        This terminates: the lowest schema, -4, has fewer buckets for all 64-bit floats.
        """
        while len(self._positive) + len(self._negative) > MAX_BUCKETS:
            self._coarser += 1
            self._positive = _halved(self._positive)
            self._negative = _halved(self._negative)


def _index(size: float) -> int:
    """Return a positive number's histogram bucket in `SCHEMA`; bounds are in the lower bucket."""
    if size == math.inf:
        return _INFINITE
    fraction, exponent = math.frexp(size)
    return bisect_left(_BOUNDS, fraction) + (exponent - 1) * _PARTS


def _halved(buckets: Mapping[int, int]) -> dict[int, int]:
    """Merge each pair of histogram buckets into one of the next lower schema."""
    merged: dict[int, int] = {}
    for index, count in buckets.items():
        above = -(-index >> 1)
        merged[above] = merged.get(above, 0) + count
    return merged


class NativeFamily(Metric):
    """Metric family of a histogram, with the native buckets of each series by label values."""

    natives: Mapping[tuple[str, ...], NativeBuckets]


class Histogram(prometheus_client.Histogram):
    """Prometheus client histogram that also counts into native buckets."""

    def __init__(
        self, name: str, documentation: str, labelnames: Iterable[str] = (), **options: Any
    ) -> None:
        self._native = NativeBuckets()
        super().__init__(name, documentation, labelnames, **options)

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count an observation in classic and native buckets.

        Native buckets are updated first. They are read last, so they never contain less than the
        classic ones.
        """
        self._native.observe(amount)
        super().observe(amount, exemplar)

    def collect(self) -> list[NativeFamily]:
        """Return the histogram's metric family with classic and native buckets."""
        (classic,) = super().collect()
        family = NativeFamily(classic.name, classic.documentation, classic.type, classic.unit)
        family.samples = classic.samples
        family.natives = {labels: series._native for labels, series in self._series()}
        return [family]

    def _series(self) -> list[tuple[Any, Any]]:
        """Return the histogram's series that observe values, with their label values."""
        if not self._labelnames:
            return [((), self)]
        with self._lock:
            return [*self._metrics.items()]
