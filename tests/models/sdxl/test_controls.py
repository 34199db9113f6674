"""What the steps of a request are told of its controls, and how much they work for them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.interface.pipeline import Pipeline, Prepared, RequestError
from models.sdxl.controls import NETWORKS, SCALES
from workers.jaxpr.logical_mesh import logical_layout
from workers.plan.model import abstract

FIELDS = {"prompt": "", "seed": 0, "width": 64, "height": 32, "num_inference_steps": 5}


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return abstract("sdxl-controlnet-union", "bfloat16", logical_layout().of_parameter)


def prepared(pipeline: Pipeline, *control: dict[str, Any]) -> Prepared:
    file = io.BytesIO()
    Image.new("RGB", (50, 20), "red").save(file, "PNG")
    images = {f"control.{i}.image": file.getvalue() for i in range(len(control))}
    return pipeline.prepare({**pipeline.spec.defaults, **FIELDS, "control": control}, images)


def test_a_step_works_for_the_controls_that_it_has(pipeline: Pipeline) -> None:
    """At step i of n unless i/n < start or (i + 1)/n > end, as in diffusers."""
    early, late = {"name": "depth", "end": 0.45}, {"name": "canny", "start": 0.3, "scale": 0.5}
    steps = prepared(pipeline, early, late).steps
    assert [[*step.values[NETWORKS]] for step in steps] == [
        [1, 0, 0],
        [1, 0, 0],
        [0, 1, 0],
        [0, 1, 0],
        [0, 1, 0],
    ]
    np.testing.assert_array_equal(steps[-1].values[SCALES], [0, 0.5, 0])
    work = pipeline.spec.controls["depth"].work
    assert 0.3 < work < 0.6
    assert [step.work for step in steps] == [1 + work] * 5
    both = prepared(pipeline, {"name": "depth"}, {"name": "canny"}).steps
    assert [step.work for step in both] == [1 + 2 * work] * 5
    assert [step.work for step in prepared(pipeline).steps] == [1.0] * 5


@pytest.mark.parametrize(
    ("control", "field"),
    [
        ([{"name": "sketch"}], "control.0.name"),
        ([{"name": "depth", "start": 0.5, "end": 0.5}], "control.0.start"),
        ([{"name": "depth"}] * 4, "control"),
    ],
)
def test_controls_that_cannot_be_are_refused_by_their_field(
    pipeline: Pipeline, control: list[dict[str, Any]], field: str
) -> None:
    with pytest.raises(RequestError) as refused:
        prepared(pipeline, *control)
    assert refused.value.field == field


def test_a_control_without_an_image_is_refused(pipeline: Pipeline) -> None:
    fields = {**pipeline.spec.defaults, **FIELDS, "control": [{"name": "depth"}]}
    with pytest.raises(RequestError, match="needed") as refused:
        pipeline.prepare(fields, {})
    assert refused.value.field == "control.0.image"
