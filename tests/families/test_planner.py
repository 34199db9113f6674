"""Plans of each family's full-size network: layouts are found, and have reasons."""

from __future__ import annotations

import pytest

from tests.families.suite import EVERY
from workers.plan.make import PlanRequest, sketched
from workers.plan.search import search
from workers.slice.topology import Topology

SLICE = Topology.parse("v6e:2x4")


@pytest.mark.parametrize(
    "name", dict.fromkeys(next(iter(entry.published)) for entry in EVERY.values())
)
def test_a_slice_of_eight_chips_is_planned(name: str) -> None:
    sketch = sketched(PlanRequest(name, SLICE, {}, dtype="bfloat16"))
    result = search(sketch, SLICE.chip, SLICE.devices)
    best = result.latency[0]
    assert best.fits and best.shape.devices == SLICE.devices and best.why
    assert best.step_s < result.latency[-1].step_s
    assert sketch.steps[sketch.main_step_kind][0].work.flops > 1e12
