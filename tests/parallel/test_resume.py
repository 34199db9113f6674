"""An image that was begun by one layout and goes on by another is the same image."""

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

LEAST_DB = 60.0
"""Of what one layout gives for the whole image: rounding alone, in the steps that are left."""
FIELDS = {**REQUEST, "num_inference_steps": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    one = {"num_layers": 1, "num_single_layers": 1}
    return make_flux(tmp_path_factory.mktemp("checkpoint") / "flux", transformer=one)


def engine(folder: Path, **sizes: int) -> Engine:
    whole = layout(**sizes)
    pipeline = registry.load("resume", str(folder), "float32", {}, sharding=whole.of_parameter)
    return Engine(pipeline, whole, slots=1)


async def test_another_layout_goes_on(folder: Path) -> None:
    four, one = engine(folder, context=4), engine(folder)
    try:
        whole, kept = await disturbed_at(3, four, FIELDS, {})
        rest = await one.generate(FIELDS, {}, begin=kept)
    finally:
        four.close()
        one.close()
    noise = np.mean(np.square(rest.pixels.astype(int) - whole.pixels))
    assert noise == 0 or 10 * np.log10(255**2 / noise) >= LEAST_DB
    assert np.std(whole.pixels) > 10, "an image without contrast proves nothing"
