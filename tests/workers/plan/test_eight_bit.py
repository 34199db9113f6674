"""Weights of 8 bits in a plan: their memory."""

from __future__ import annotations

import pytest

from models.weights.quantize import Rounding
from tests.workers.plan.conftest import DEMO
from workers.plan.estimate import estimate
from workers.plan.model import sketch_of
from workers.plan.trace import Sketch
from workers.slice.chips import CHIPS
from workers.slice.mesh_shape import MeshShape

ONE = MeshShape({}).over(1)


@pytest.mark.parametrize("family", ["flux", "sdxl", "wan"])
def test_eight_bit_weights_add_or_save_half_of_the_blocks_bytes(family: str) -> None:
    exact, additional, replacing = (
        sketch_of(str(DEMO / family), "bfloat16", {}, rounding=rounding)
        for rounding in (None, Rounding("beside"), Rounding("instead"))
    )
    narrow = [weight for weight in replacing.weights if weight.itemsize == 1]
    kernels = sum(weight.nbytes for weight in narrow)
    scales = sum(weight.nbytes // weight.shape[-2] * 4 for weight in narrow)
    assert narrow and weights(additional) == weights(exact) + kernels + scales
    assert weights(replacing) == weights(exact) - kernels + scales
    assert step_flops(additional) == step_flops(replacing) == step_flops(exact)


def weights(sketch: Sketch) -> int:
    memory = estimate(sketch, ONE, CHIPS["v6e"]).memory
    return sum(size for kind, size in memory.items() if kind.startswith("weights"))


def step_flops(sketch: Sketch) -> float:
    program, _ = sketch.steps[sketch.main_step_kind]
    return program.work.flops
