"""Work that controls add to the price of a request."""

from __future__ import annotations

from typing import Any

import pytest

from models.spec.controls import ControlKind
from tests.service.standin import SPEC

CONTROLLED = SPEC.model_copy(update={"controls": {"canny": ControlKind(work=0.5)}})


@pytest.mark.parametrize(
    ("control", "further", "work"),
    [
        ({}, {}, 0.5),
        ({"end": 0.5}, {}, 0.25),
        ({"start": 0.5, "end": 0.75}, {}, 0.125),
        ({"scale": 0}, {}, 0.0),
        ({"name": "other"}, {}, 0.0),
        ({}, {"refiner": {"switch": 0.5}}, 0.25),
        ({"end": 0.25}, {"refiner": {"switch": 0.5}}, 0.125),
        ({"start": 0.6}, {"refiner": {"switch": 0.5}}, 0.0),
        ({}, {"refiner": {"switch": 0.5}, "mask_image": "x"}, 0.5),
        ({}, {"refiner": {}}, 0.5),
    ],
)
def test_work_is_that_of_the_steps_that_read_it(
    control: dict[str, Any], further: dict[str, Any], work: float
) -> None:
    """To an eighth, upwards; a refiner's steps read none."""
    request = {"control": [{"name": "canny", "image": "x", **control}], **further}
    assert CONTROLLED.control_work(request) == work
