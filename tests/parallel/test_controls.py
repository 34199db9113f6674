"""Rows of one batch that lie on several devices, each with controls of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.interface.pipeline import Pipeline
from tests.families.suite import EVERY, loaded
from tests.families.test_company import begun, drawn, mixed, presets, stepped
from tests.parallel.layouts import layout
from tests.parallel.place import placed
from workers.engine.engine import Engine
from workers.programs.batch_sizes import exact

NAME = "sdxl-controlnet"
LAYOUTS: dict[str, dict[str, Any]] = {
    "data 2": {"data": 2},
    "data 2, cfg 2": {"data": 2, "cfg": 2},
}


@pytest.fixture(scope="module", autouse=True)
def compiled_coarsely(coarse: None) -> None:
    """What is computed is asked here, not how fast."""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder: Path = EVERY[NAME].least(tmp_path_factory.mktemp("controls") / NAME)
    return loaded(NAME, folder, "float32", qualities=presets(NAME))


@pytest.mark.parametrize("name", LAYOUTS)
async def test_rows_side_by_side_wait_for_each_other_and_change_no_bit(
    name: str, pipeline: Pipeline
) -> None:
    """Of two devices one has a control of another network than its neighbour, or none."""
    by, requests = layout(**LAYOUTS[name]), mixed(NAME)[:5]
    engine = Engine(placed(pipeline, by), by, 4, exact(by.mesh.shape["data"]))
    try:
        together = await drawn(engine, requests, together=True)
        assert together == await drawn(engine, requests, together=False)
    finally:
        engine.close()
    assert len({image.pixels for image in together}) == len(requests), "all alike"


SWAPPED = ((0, 3, 2, 1), (2, 1, 0, 3))
"""Orders of four rows in which two stay where they were and the others change places."""


async def test_turns_side_by_side_change_no_bit_of_a_row_that_stays(pipeline: Pipeline) -> None:
    """Two rows a device. Of several, the place on it may count: kernels of CPUs round by it."""
    by = layout(data=2)
    engine = Engine(placed(pipeline, by), by, 4, exact(4))
    try:
        rows = [begun(engine, fields) for fields in mixed(NAME)[::2]]
        expected = stepped(engine, rows, 4)
        for order in SWAPPED:
            found = stepped(engine, [rows[number] for number in order], 4)
            stay = [place for place, number in enumerate(order) if place == number]
            assert [found[place] for place in stay] == [expected[place] for place in stay]
    finally:
        engine.close()
    assert len({*expected}) == 4, "all alike"
