"""One slice, many requests or few: the engine chooses the layout anew at each step, and the
images are those of one device."""

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
"""Of 255: layouts differ by the order of their sums, and so by rounding."""
SLOTS = 4
STEPS = 24
"""Enough that each way gets its trials before the last image is done."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_flux(tmp_path_factory.mktemp("checkpoint") / "flux")


def steps_by_layout() -> Counter[str]:
    """Steps so far, by how the slice was split."""
    found: Counter[str] = Counter()
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if sample.name == "atelier_step_seconds_count" and sample.labels["model"] == "elastic":
                found[sample.labels["layout"]] += int(sample.value)
    return found


async def test_few_have_the_whole_slice_and_many_a_part_of_it_each(folder: Path) -> None:
    whole = layout(context=4)
    pipeline: Pipeline = registry.load(
        "elastic", str(folder), "float32", {}, sharding=whole.of_parameter
    )
    plain = registry.load("plain", str(folder), "float32", {})
    requests = [{**REQUEST, "seed": seed, "num_inference_steps": STEPS} for seed in range(SLOTS)]
    engine = Engine(pipeline, whole, SLOTS, fast(SLOTS, (1, SLOTS)))
    try:
        await engine.warm_up([REQUEST])
        await engine.larger_ready([REQUEST])
        alone = await engine.generate(requests[0], {})
        assert steps_by_layout().keys() == {layout_name(whole)}, "one request has all devices"
        together = await asyncio.gather(*(engine.generate(request, {}) for request in requests))
    finally:
        engine.close()
    assert steps_by_layout()["data=4"] > 0, "many were never side by side"
    programs = Programs(plain)
    expected = [programs.drawn(plain.prepare(request, {}))[1] for request in requests]
    for picture, pixels in zip((alone, *together), (expected[0], *expected), strict=True):
        assert np.abs(picture.pixels.astype(int) - pixels).max() <= PIXEL_TOLERANCE
