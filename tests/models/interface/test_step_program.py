"""Key of a step's compiled program, and its text form."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from models.interface.step_program import StepProgram
from models.sampling.base import Scheduler
from models.sampling.registry import CHOICES, OPTIONS, for_request, solver_of

SDXL = {"_class_name": "EulerDiscreteScheduler", "beta_schedule": "scaled_linear"}
THRESHOLD = {"thresholding": True, "dynamic_thresholding_ratio": 0.1 + 0.2, "sample_max_value": 2}
SELECTIONS: list[dict[str, Any]] = [
    *({"name": name} for name in CHOICES if name != "flow_match_euler" and name.islower()),
    *({"name": name, **THRESHOLD} for name in ("ddim", "lcm", "dpmpp_2m", "unipc")),
    {"name": "unipc", "solver_order": 3, "predict_x0": False},
    {"name": "dpmpp_2m", "algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"},
]


@pytest.mark.parametrize("chosen", SELECTIONS, ids=str)
def test_a_program_is_read_back_from_its_text(chosen: dict[str, Any]) -> None:
    solver = for_request(SDXL, chosen).solver
    variants = product([None, "w8a16", "w8a8"], [None, "first-block", "teacache"])
    for quant, cache in variants:
        program = StepProgram("unet", True, solver, True, quant, cache)
        assert StepProgram.parse(str(program)) == program
    assert solver_of(str(solver)) == solver


SMALL = {"number": (0.01, 0.02), "integer": (100, 200)}
"""Two values per kind that every schedule accepts."""
NUMBERS = [
    (name, option, SMALL[about.kind])
    for name, options in OPTIONS.items()
    for option, about in options.items()
    if name.islower() and about.kind in SMALL and option != "solver_order"  # only three values
]


@pytest.mark.parametrize(("name", "option", "values"), NUMBERS)
def test_no_number_of_a_request_makes_another_program(
    name: str, option: str, values: tuple[float, float]
) -> None:
    """Otherwise clients could force a compilation with every request."""
    switches = {flag: True for flag in ("thresholding", "use_flow_sigmas") if flag in OPTIONS[name]}
    requests = ({"name": name, **switches, option: value} for value in values)
    first, second = (for_request(SDXL, options) for options in requests)
    assert first != second
    assert _program(first) == _program(second)


def _program(scheduler: Scheduler) -> StepProgram:
    return StepProgram("unet", True, scheduler.solver, bool(scheduler.plan(4).draws.any()))


def test_texts_are_for_people() -> None:
    solver = for_request(SDXL, {"name": "unipc", "solver_order": 3}).solver
    program = StepProgram("transformer_2", True, solver, quant="w8a16", cache="first-block")
    assert str(program) == "transformer_2 guided unipc(order=3) w8a16 first-block"
    assert str(StepProgram("transformer")) == "transformer"
    assert StepProgram.parse("transformer") == StepProgram("transformer")


@pytest.mark.parametrize(
    "text",
    ["unet heun", "unet euler ddim", "unet euler(", "unet unipc(size=3)", "unet unipc(order=f())"],
)
def test_invalid_program_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"solver"):
        StepProgram.parse(text)


def test_network_names_are_single_words() -> None:
    for name in ("", "two words"):
        with pytest.raises(ValueError, match="one word"):
            StepProgram(name)
