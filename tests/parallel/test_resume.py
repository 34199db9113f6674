"""Resuming an image under another layout gives the same image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models import registry
from tests.parallel.layouts import layout
from tests.parity.tiny import make_flux
from tests.workers.flux import REQUEST
from tests.workers.resume import disturbed_at
from workers.engine.engine import Engine

MIN_DB = 60.0
"""PSNR against the image of one layout: only the remaining steps' rounding differs."""
FIELDS = {**REQUEST, "num_inference_steps": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = {"num_layers": 1, "num_single_layers": 1}
    return make_flux(tmp_path_factory.mktemp("checkpoint") / "flux", transformer=layers)


def engine(folder: Path, **sizes: int) -> Engine:
    sharded = layout(**sizes)
    pipeline = registry.load("resume", str(folder), "float32", {}, sharding=sharded.of_parameter)
    return Engine(pipeline, sharded, slots=1)


async def test_resume_on_another_layout(folder: Path) -> None:
    four, single = engine(folder, context=4), engine(folder)
    try:
        uninterrupted, snapshot = await disturbed_at(3, four, FIELDS, {})
        resumed = await single.generate(FIELDS, {}, begin=snapshot)
    finally:
        four.close()
        single.close()
    noise = np.mean(np.square(resumed.pixels.astype(int) - uninterrupted.pixels))
    assert noise == 0 or 10 * np.log10(255**2 / noise) >= MIN_DB
    assert np.std(uninterrupted.pixels) > 10, "an image without contrast proves nothing"
