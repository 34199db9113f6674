"""Exponential buckets of one series: a native histogram of Prometheus.

Source: https://prometheus.io/docs/specs/native_histograms/. Bucket `i` of schema `s` holds what is
above `base**(i - 1)` and not above `base**i`, `base` being `2**(2**-s)`: every second bound of a
schema is one of the next lower schema, so that pairs of buckets merge without a loss but that of
resolution.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

SCHEMA = 3
"""Schema that each series begins with: bounds are 9 % apart."""
MAX_BUCKETS = 160
"""Buckets of one series: with more, it goes on with the next lower schema."""
ZERO_THRESHOLD = 2.0**-128
"""Distance from 0 up to which a value counts as 0. Source: the Prometheus client for Go."""

_PARTS = 2**SCHEMA
_BOUNDS = tuple(2.0 ** (part / _PARTS - 1) for part in range(_PARTS))
"""Bounds from 0.5 on and below 1, which `math.frexp` brings every number to."""
_INFINITE = sys.float_info.max_exp * _PARTS + 1
"""Bucket of infinity: the one after the greatest number's."""


@dataclass(frozen=True)
class BucketCounts:
    """Counts of one series at one moment."""

    count: int
    """Number of observations; those of NaN are in no bucket."""
    sum: float
    schema: int
    zeros: int
    positive: Mapping[int, int]
    """Number of observations by bucket, in the order of the bounds."""
    negative: Mapping[int, int]
    """The same of negative ones, by the buckets of their absolute values."""


class NativeBuckets:
    """Count of one series; any thread may observe and read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._sum = 0.0
        self._coarser = 0
        """Times that resolution was halved."""
        self._zeros = 0
        self._positive: dict[int, int] = {}
        self._negative: dict[int, int] = {}

    def observe(self, value: float) -> None:
        """Count one observation, of whatever value."""
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
        """Return all that was observed until now."""
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
        """Halve the resolution until there are few enough buckets.

        The lowest schema that there is, -4, has fewer for all numbers of 64 bits.
        """
        while len(self._positive) + len(self._negative) > MAX_BUCKETS:
            self._coarser += 1
            self._positive = _halved(self._positive)
            self._negative = _halved(self._negative)


def _index(size: float) -> int:
    """Return a positive number's bucket in `SCHEMA`; bounds belong to the bucket below them."""
    if size == math.inf:
        return _INFINITE
    fraction, exponent = math.frexp(size)
    return bisect_left(_BOUNDS, fraction) + (exponent - 1) * _PARTS


def _halved(buckets: Mapping[int, int]) -> dict[int, int]:
    """Merge each pair of buckets into one of the next lower schema."""
    merged: dict[int, int] = {}
    for index, count in buckets.items():
        above = -(-index >> 1)
        merged[above] = merged.get(above, 0) + count
    return merged
