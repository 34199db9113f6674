"""Native histogram buckets: each observation is in its bucket at any resolution, and their number
is bounded."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.jobs.model.histogram import (
    MAX_BUCKETS,
    SCHEMA,
    ZERO_THRESHOLD,
    BucketCounts,
    NativeBuckets,
)

LOWEST = -4
"""Lowest schema of native histograms in Prometheus, of those by powers of two."""
BOUNDS = {2.0 ** (part / 2**SCHEMA - 1) for part in range(1, 2**SCHEMA)}
"""Bucket bounds, which every Prometheus client rounds: exact arithmetic does not decide their side.
"""
SIZES = st.floats(ZERO_THRESHOLD, exclude_min=True, allow_infinity=False).filter(
    lambda size: math.frexp(size)[0] not in BOUNDS
)
WIDE = [2.0**exponent for exponent in range(-120, 120)]
"""Values that need more than `MAX_BUCKETS` buckets in the finest schemas."""


def of(*values: float) -> BucketCounts:
    buckets = NativeBuckets()
    for value in values:
        buckets.observe(value)
    return buckets.counts()


def lies_in(size: float, index: int, schema: int) -> bool:
    """Return whether base**(index - 1) < size <= base**index, exactly; base is 2**(2**-schema)."""
    powers, step = (2**schema, 1) if schema >= 0 else (1, 2**-schema)
    raised = Fraction(size) ** powers
    return Fraction(2) ** ((index - 1) * step) < raised <= Fraction(2) ** (index * step)


def bucket_of(size: float, schema: int) -> int:
    """Index of a value's bucket: estimated by a logarithm, then decided exactly."""
    about = math.ceil(math.log2(size) * 2.0**schema)
    (bucket,) = (index for index in range(about - 1, about + 2) if lies_in(size, index, schema))
    return bucket


@given(SIZES)
def test_observation_is_counted_in_its_bucket(size: float) -> None:
    counts = of(size)
    assert counts.schema == SCHEMA
    assert counts.positive == {bucket_of(size, SCHEMA): 1}


@given(st.lists(SIZES, min_size=1, max_size=20))
def test_values_stay_in_their_buckets_after_a_loss_of_resolution(sizes: list[float]) -> None:
    """Values observed before and after the loss of resolution are in their buckets."""
    counts = of(*sizes, *WIDE, *sizes)
    assert LOWEST <= counts.schema < SCHEMA
    assert len(counts.positive) <= MAX_BUCKETS
    assert list(counts.positive) == sorted(counts.positive)
    every = [*sizes, *WIDE, *sizes]
    assert counts.positive == Counter(bucket_of(size, counts.schema) for size in every)


@pytest.mark.parametrize("exponent", [-127, -3, -1, 0, 1, 7, 1023])
def test_bounds_belong_to_the_bucket_below(exponent: int) -> None:
    bound = 2.0**exponent
    assert [*of(bound).positive] == [exponent * 2**SCHEMA]
    assert [*of(math.nextafter(bound, 0)).positive] == [exponent * 2**SCHEMA]
    assert [*of(math.nextafter(bound, math.inf)).positive] == [exponent * 2**SCHEMA + 1]


def test_bucket_resolution_halves_above_the_maximum() -> None:
    base = 2 ** (2**-SCHEMA)
    inside = [base ** (index + 0.5) for index in range(MAX_BUCKETS)]
    assert of(*inside).schema == SCHEMA and len(of(*inside).positive) == MAX_BUCKETS
    more = of(*inside, base ** (MAX_BUCKETS + 0.5))
    assert more.schema == SCHEMA - 1 and len(more.positive) == MAX_BUCKETS // 2 + 1


def test_the_least_resolution_takes_every_number() -> None:
    every = [*(2.0**exponent for exponent in range(-127, 1024)), math.inf]
    counts = of(*every, *(-value for value in every))
    assert len(counts.positive) + len(counts.negative) <= MAX_BUCKETS
    assert counts.schema >= LOWEST and counts.count == 2 * len(every)


@given(st.lists(st.floats(width=64), max_size=30))
def test_every_observation_is_counted(values: list[float]) -> None:
    """NaN is in no bucket; infinity is in the bucket after the greatest number's."""
    counts = of(*values)
    assert counts.count == len(values)
    in_buckets = counts.zeros + sum(counts.positive.values()) + sum(counts.negative.values())
    assert in_buckets == sum(not math.isnan(value) for value in values)
    assert counts.zeros == sum(abs(value) <= ZERO_THRESHOLD for value in values)
    assert sum(counts.negative.values()) == sum(value < -ZERO_THRESHOLD for value in values)
    assert counts.sum == pytest.approx(sum(values), nan_ok=True)


def test_infinity_is_beyond_the_greatest_number() -> None:
    greatest = math.ldexp(1 - 2**-53, 1024)
    assert [*of(greatest, math.inf).positive] == [1024 * 2**SCHEMA, 1024 * 2**SCHEMA + 1]


@given(st.lists(SIZES, max_size=30))
def test_negative_observations_are_mirrored(sizes: list[float]) -> None:
    counts, mirrored = of(*sizes), of(*(-size for size in sizes))
    assert counts.positive == mirrored.negative and not mirrored.positive
