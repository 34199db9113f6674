"""Elastic layouts: the engine chooses a layout for each step by the number of requests.

The images equal those of one device.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import REGISTRY

from models import registry
from models.interface.pipeline import Pipeline
from tests.parallel.layouts import layout
from tests.parity.programs import Programs
from tests.parity.tiny import make_flux
from tests.workers.flux import REQUEST
from workers.engine.engine import Engine
from workers.engine.step_metrics import layout_name
from workers.programs.batch_sizes import fast

PIXEL_TOLERANCE = 2
"""Levels of 255: layouts differ by the order of sums."""
SLOTS = 4
STEPS = 24
"""Enough steps for each layout to be tried before the last image is done."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_flux(tmp_path_factory.mktemp("checkpoint") / "flux")


def steps_by_layout() -> Counter[str]:
    """Steps so far by layout, from the metric `atelier_step_seconds_count`."""
    counts: Counter[str] = Counter()
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if sample.name == "atelier_step_seconds_count" and sample.labels["model"] == "elastic":
                counts[sample.labels["layout"]] += int(sample.value)
    return counts


async def test_few_rows_use_the_whole_slice_many_rows_parts_of_it(folder: Path) -> None:
    sharded = layout(context=4)
    pipeline: Pipeline = registry.load(
        "elastic", str(folder), "float32", {}, sharding=sharded.of_parameter
    )
    plain = registry.load("plain", str(folder), "float32", {})
    requests = [{**REQUEST, "seed": seed, "num_inference_steps": STEPS} for seed in range(SLOTS)]
    engine = Engine(pipeline, sharded, SLOTS, fast(SLOTS, (1, SLOTS)))
    try:
        await engine.readiness.warm_up([REQUEST])
        await engine.readiness.larger_ready([REQUEST])
        single = await engine.generate(requests[0], {})
        assert steps_by_layout().keys() == {layout_name(sharded)}, "one request has all devices"
        together = await asyncio.gather(*(engine.generate(request, {}) for request in requests))
    finally:
        engine.close()
    assert steps_by_layout()["data=4"] > 0, "no step ran several requests in parallel"
    programs = Programs(plain)
    expected = [programs.drawn(plain.prepare(request, {}))[1] for request in requests]
    for image, pixels in zip((single, *together), (expected[0], *expected), strict=True):
        assert np.abs(image.pixels.astype(int) - pixels).max() <= PIXEL_TOLERANCE
