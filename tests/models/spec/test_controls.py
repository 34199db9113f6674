"""Work of control images in the price of a request."""

from __future__ import annotations

from typing import Any

import pytest

from models.spec.controls import ControlKind
from tests.service.standin import SPEC

KINDS = {
    "canny": ControlKind(work=0.5),
    **{mode: ControlKind(mode=mode, work=0.375, union=2) for mode in ("pose", "depth")},
    "other": ControlKind(mode="pose", work=0.375, union=3),
}
CONTROLLED = SPEC.model_copy(update={"controls": KINDS})


@pytest.mark.parametrize(
    ("control", "further", "work"),
    [
        ({}, {}, 0.5),
        ({"end": 0.5}, {}, 0.25),
        ({"start": 0.5, "end": 0.75}, {}, 0.125),
        ({"scale": 0}, {}, 0.0),
        ({"name": "unknown"}, {}, 0.0),
        ({}, {"refiner": {"switch": 0.5}}, 0.25),
        ({"end": 0.25}, {"refiner": {"switch": 0.5}}, 0.125),
        ({"start": 0.6}, {"refiner": {"switch": 0.5}}, 0.0),
        ({}, {"refiner": {"switch": 0.5}, "mask_image": "x"}, 0.5),
        ({}, {"refiner": {}}, 0.5),
    ],
)
def test_control_work_counts_the_active_steps(
    control: dict[str, Any], further: dict[str, Any], work: float
) -> None:
    """Rounded up to an eighth. A refiner's steps read no controls."""
    request = {"control": [{"name": "canny", "image": "x", **control}], **further}
    assert CONTROLLED.control_work(request) == work


@pytest.mark.parametrize(
    ("control", "further", "work"),
    [
        ([{"name": "pose", "end": 0.5}, {"name": "depth", "scale": 0}], {}, 0.375),
        ([{"name": "pose"}, {"name": "depth"}, {"name": "pose"}], {}, 0.375),
        ([{"name": "pose"}, {"name": "canny"}, {"name": "depth"}], {}, 0.875),
        ([{"name": "pose"}, {"name": "other"}], {}, 0.75),
        ([{"name": "canny"}, {"name": "canny"}], {}, 1.0),
        ([{"name": "pose", "scale": 0}, {"name": "other"}], {}, 0.375),
        ([{"name": "pose"}, {"name": "depth"}], {"refiner": {"switch": 0.5}}, 0.25),
    ],
)
def test_several_images_of_a_union_cost_as_one_in_every_step(
    control: list[dict[str, Any]], further: dict[str, Any], work: float
) -> None:
    assert CONTROLLED.control_work({"control": control, **further}) == work
