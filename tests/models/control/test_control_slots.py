"""Control images in the steps of a row: slots, scales and work."""

from __future__ import annotations

import numpy as np

from models.control.slots import KINDS, NETWORKS, RUN_SLOTS, SCALES, VISIBLE, ControlSlots
from models.interface.controls import RequestedControl
from models.interface.pipeline import Step
from models.interface.step_program import StepProgram

PLACES = ControlSlots(1, {"canny": (1, 0)}, {"canny": 0.5}, "unet")
PIXELS = np.zeros((8, 8, 3), np.uint8)


def test_a_refiners_steps_have_none() -> None:
    """A refiner's steps cost the same with and without controls, so measured times stay valid."""
    networks = ("unet", "unet", "refiner")
    steps = [Step(StepProgram(network), {}) for network in networks]
    steps_with_controls = PLACES.steps(steps, [RequestedControl("canny", 0.7, 0.0, 1.0, PIXELS)])
    assert [step.work for step in steps_with_controls] == [1.5, 1.5, 1.0]
    assert [float(step.values[NETWORKS][0]) for step in steps_with_controls] == [1, 1, 0]
    assert [round(float(step.values[SCALES][0]), 6) for step in steps_with_controls] == [
        0.7,
        0.7,
        0,
    ]


UNION = ControlSlots(
    4,
    {"canny": (1, 0), "pose": (2, 0), "depth": (2, 1)},
    {"canny": 0.5, "pose": 0.25, "depth": 0.25},
    "unet",
    union_networks=frozenset({2}),
)


def test_images_of_a_union_are_read_in_one_run_of_every_step() -> None:
    """The first image's slot runs for all images; each strength is in its hint."""
    controls = [
        RequestedControl("canny", 0.7, 0.0, 0.5, PIXELS),
        RequestedControl("depth", 0.4, 0.5, 1.0, PIXELS),
        RequestedControl("pose", 0.8, 0.0, 0.5, PIXELS),
    ]
    inputs = UNION.inputs(controls)
    assert inputs[NETWORKS].tolist() == [1, 2, 2, 0]
    np.testing.assert_allclose(inputs[SCALES], [1, 0.4, 0.8, 0], rtol=1e-6)
    steps = UNION.steps([Step(StepProgram("unet"), {})] * 2, controls)
    assert [step.work for step in steps] == [1.75, 1.25]
    values = {
        name: [step.values[name].tolist() for step in steps]
        for name in (NETWORKS, KINDS, RUN_SLOTS, VISIBLE)
    }
    assert values == {
        NETWORKS: [[1, 2, 0, 0], [0, 2, 0, 0]],
        KINDS: [[0, 1, 0, 0]] * 2,
        RUN_SLOTS: [[1, 2, 2, 0]] * 2,
        VISIBLE: [[1, 0, 1, 0], [0, 1, 0, 0]],
    }
    np.testing.assert_allclose(steps[0].values[SCALES], [0.7, 1, 0, 0], rtol=1e-6)


def test_single_union_image_has_its_scale_and_interval() -> None:
    steps = UNION.steps(
        [Step(StepProgram("unet"), {})] * 2, [RequestedControl("pose", 0.8, 0.5, 1.0, PIXELS)]
    )
    assert [step.work for step in steps] == [1.0, 1.25]
    assert [float(step.values[NETWORKS][0]) for step in steps] == [0, 2]
    np.testing.assert_allclose([step.values[SCALES][0] for step in steps], [0, 0.8], rtol=1e-6)
