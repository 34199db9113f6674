"""Small functions of the engine benchmark: spread, rate and machine description."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from deploy.bench.engine.matrix import matrix_rate
from deploy.bench.engine.result import Spread
from deploy.bench.machine import flags, processor


def test_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2, 1, 3), "three repeats have no quartiles"
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3, 2, 4)


def test_the_rate_counts_all_devices() -> None:
    rate = matrix_rate(jax.devices()[:2], jnp.float32, repeats=3, side=64)
    assert (rate.side, rate.dtype, rate.devices, len(rate.flops)) == (64, "float32", 2, 3)
    assert rate.typical == pytest.approx(sorted(rate.flops)[1]) and rate.typical > 0


def test_the_processor_is_named() -> None:
    assert processor("flags: x\nmodel name\t: Some Chip 9\nmodel name\t: Some Chip 9\n") == (
        "Some Chip 9"
    )


def test_only_set_flags_are_recorded() -> None:
    assert flags({"XLA_FLAGS": "--xla_a", "HOME": "/"}) == {"XLA_FLAGS": "--xla_a"}
