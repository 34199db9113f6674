"""Weights of 8 bits in a plan: what they take, and how fast their products are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.rounding import Rounding
from tests.workers.plan.conftest import DEMO
from workers.axes import Shape
from workers.plan.chips import CHIPS
from workers.plan.model import sketch_of
from workers.plan.reckon import Reckoning, reckon
from workers.plan.sketch import Sketch
from workers.plan.work import Work

V6E = CHIPS["v6e"]
ONE = Shape({}).over(1)


@pytest.fixture(scope="module", params=["flux", "sdxl", "wan"])
def sketches(request: pytest.FixtureRequest) -> tuple[Sketch, Sketch, Sketch]:
    """Exact weights alone, 8 bits beside them, and instead of them."""
    source = str(DEMO / request.param)
    exact, beside, instead = (
        sketch_of(source, "bfloat16", {}, rounding=rounding)
        for rounding in (None, Rounding("beside"), Rounding("instead"))
    )
    return exact, beside, instead


def weights(one: Reckoning) -> int:
    return sum(size for kind, size in one.memory.items() if kind.startswith("weights"))


def test_memory_has_half_of_the_blocks_more_or_half_of_them_less(
    sketches: tuple[Sketch, Sketch, Sketch],
) -> None:
    exact, beside, instead = (weights(reckon(one, ONE, V6E)) for one in sketches)
    narrow = [one for one in sketches[2].weights if one.itemsize == 1]
    kernels = sum(one.nbytes for one in narrow)
    scales = sum(one.nbytes // one.shape[-2] * 4 for one in narrow)
    assert narrow and beside == exact + kernels + scales
    assert instead == exact - kernels + scales


def test_products_of_8_bits_are_as_much_faster_as_the_chip_has_them(
    sketches: tuple[Sketch, Sketch, Sketch],
) -> None:
    """Beside exact ones nothing changes for those who ask for `exact`."""
    exact, beside, instead = (step(one) for one in sketches)
    assert beside.ops == exact.ops
    assert instead.flops == exact.flops
    slow, fast = (
        reckon(sketches[2], ONE, replace(V6E, eight_bit_rate=rate, memory_bytes_s=1e18)).step_s
        for rate in (1, 2)
    )
    halved = sum(count * op.flops for op, count in instead.ops.items() if op.eight_bit) / 2
    assert halved and slow - fast == pytest.approx(
        halved / (V6E.peak_flops * V6E.efficiency.matmul)
    )


def step(sketch: Sketch) -> Work:
    return sketch.steps[sketch.phase][0].work
