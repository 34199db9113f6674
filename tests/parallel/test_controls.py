"""Rows of one batch on several devices, with a different ControlNet per row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.interface.pipeline import Pipeline
from tests.families.suite import EVERY, loaded
from tests.families.test_batch_invariance import begun, drawn, mixed, presets, stepped
from tests.parallel.layouts import layout
from tests.parallel.placed_pipeline import placed
from workers.engine.engine import Engine
from workers.programs.batch_sizes import exact

NAME = "sdxl-controlnet"
LAYOUTS: dict[str, dict[str, Any]] = {
    "data 2": {"data": 2},
    "data 2, cfg 2": {"data": 2, "cfg": 2},
}


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """Compile with coarse options: these tests check results, not speed."""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder: Path = EVERY[NAME].least(tmp_path_factory.mktemp("controls") / NAME)
    return loaded(NAME, folder, "float32", qualities=presets(NAME))


@pytest.mark.parametrize("name", LAYOUTS)
async def test_parallel_rows_with_controls_change_no_bit(name: str, pipeline: Pipeline) -> None:
    """Rows on two devices have different control networks, or one row has none."""
    by, requests = layout(**LAYOUTS[name]), mixed(NAME)[:5]
    engine = Engine(placed(pipeline, by), by, 4, exact(by.mesh.shape["data"]))
    try:
        together = await drawn(engine, requests, together=True)
        assert together == await drawn(engine, requests, together=False)
    finally:
        engine.close()
    assert len({image.pixels for image in together}) == len(requests), (
        "the requests' images do not differ"
    )


SWAPPED = ((0, 3, 2, 1), (2, 1, 0, 3))
"""Orders of four rows: two rows keep their position and two change places."""


async def test_order_of_parallel_rows_changes_no_bit(pipeline: Pipeline) -> None:
    """Two rows per device: CPU kernels may round by the position on a device."""
    by = layout(data=2)
    engine = Engine(placed(pipeline, by), by, 4, exact(4))
    try:
        rows = [begun(engine, fields) for fields in mixed(NAME)[::2]]
        expected = stepped(engine, rows, 4)
        for order in SWAPPED:
            outputs = stepped(engine, [rows[number] for number in order], 4)
            unmoved = [index for index, number in enumerate(order) if index == number]
            assert [outputs[index] for index in unmoved] == [expected[index] for index in unmoved]
    finally:
        engine.close()
    assert len({*expected}) == 4, "the rows do not differ"
