"""Controls in the steps of a row."""

from __future__ import annotations

import numpy as np

from models.control.places import KINDS, NETWORKS, PASSES, SCALES, SEEN, ControlPlaces
from models.interface.controls import RequestedControl
from models.interface.pipeline import Step
from models.interface.step_program import StepProgram

PLACES = ControlPlaces(1, {"canny": (1, 0)}, {"canny": 0.5}, "unet")
PIXELS = np.zeros((8, 8, 3), np.uint8)


def test_a_refiners_steps_have_none() -> None:
    """They cost what they cost without, so that measured times are theirs."""
    networks = ("unet", "unet", "refiner")
    steps = [Step(StepProgram(network), {}) for network in networks]
    found = PLACES.steps(steps, [RequestedControl("canny", 0.7, 0.0, 1.0, PIXELS)])
    assert [step.work for step in found] == [1.5, 1.5, 1.0]
    assert [float(step.values[NETWORKS][0]) for step in found] == [1, 1, 0]
    assert [round(float(step.values[SCALES][0]), 6) for step in found] == [0.7, 0.7, 0]


UNION = ControlPlaces(
    4,
    {"canny": (1, 0), "pose": (2, 0), "depth": (2, 1)},
    {"canny": 0.5, "pose": 0.25, "depth": 0.25},
    "unet",
    together=frozenset({2}),
)


def test_images_of_a_union_are_read_in_one_run_of_every_step() -> None:
    """The first one's slot runs for all; their own strengths are in their hints."""
    controls = [
        RequestedControl("canny", 0.7, 0.0, 0.5, PIXELS),
        RequestedControl("depth", 0.4, 0.5, 1.0, PIXELS),
        RequestedControl("pose", 0.8, 0.0, 0.5, PIXELS),
    ]
    inputs = UNION.inputs(controls)
    assert inputs[NETWORKS].tolist() == [1, 2, 2, 0]
    np.testing.assert_allclose(inputs[SCALES], [1, 0.4, 0.8, 0], rtol=1e-6)
    found = UNION.steps([Step(StepProgram("unet"), {})] * 2, controls)
    assert [step.work for step in found] == [1.75, 1.25]
    values = {
        name: [step.values[name].tolist() for step in found]
        for name in (NETWORKS, KINDS, PASSES, SEEN)
    }
    assert values == {
        NETWORKS: [[1, 2, 0, 0], [0, 2, 0, 0]],
        KINDS: [[0, 1, 0, 0]] * 2,
        PASSES: [[1, 2, 2, 0]] * 2,
        SEEN: [[1, 0, 1, 0], [0, 1, 0, 0]],
    }
    np.testing.assert_allclose(found[0].values[SCALES], [0.7, 1, 0, 0], rtol=1e-6)


def test_an_image_alone_in_its_run_has_its_strength_and_share_of_the_steps() -> None:
    found = UNION.steps(
        [Step(StepProgram("unet"), {})] * 2, [RequestedControl("pose", 0.8, 0.5, 1.0, PIXELS)]
    )
    assert [step.work for step in found] == [1.0, 1.25]
    assert [float(step.values[NETWORKS][0]) for step in found] == [0, 2]
    np.testing.assert_allclose([step.values[SCALES][0] for step in found], [0, 0.8], rtol=1e-6)
