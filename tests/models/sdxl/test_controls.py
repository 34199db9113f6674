"""Controls in the steps of a row."""

from __future__ import annotations

import numpy as np

from models.interface.controls import RequestedControl
from models.interface.pipeline import Step
from models.interface.step_program import StepProgram
from models.sdxl.controls import NETWORKS, SCALES, ControlPlaces

PLACES = ControlPlaces(1, {"canny": (1, 0)}, {"canny": 0.5})
PIXELS = np.zeros((8, 8, 3), np.uint8)


def test_a_refiners_steps_have_none() -> None:
    """They cost what they cost without, so that measured times are theirs."""
    networks = ("unet", "unet", "refiner")
    steps = [Step(StepProgram(network), {}) for network in networks]
    found = PLACES.steps(steps, [RequestedControl("canny", 0.7, 0.0, 1.0, PIXELS)])
    assert [step.work for step in found] == [1.5, 1.5, 1.0]
    assert [float(step.values[NETWORKS][0]) for step in found] == [1, 1, 0]
    assert [round(float(step.values[SCALES][0]), 6) for step in found] == [0.7, 0.7, 0]
