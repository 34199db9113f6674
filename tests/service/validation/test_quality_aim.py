"""A minimum PSNR instead of a preset's name selects the fastest preset that reached it, else
`exact`."""

from __future__ import annotations

from typing import Any

import pytest

from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import GuidanceInterval, Measured, Quality
from models.spec.step_plan import PlannedCache, StepPlan
from service.errors.problems import Invalid
from service.schemas.request import GenerateRequest
from service.settings.limits import LimitSettings
from service.validation.resolved_fields import resolve
from tests.service.standin import SPEC

STEPS = SPEC.defaults["num_inference_steps"]


def preset(worst_db: float, time: float, steps: int = STEPS) -> Quality:
    measured = Measured(steps=steps, images=4, worst_db=worst_db, operations=time, time=time)
    return Quality(guidance=GuidanceInterval(stop=0.5), measured=measured)


def spec(**qualities: Quality) -> ModelSpec:
    update = {
        "fields": SPEC.fields | {"quality", "num_inference_steps"},
        "tasks": ("text-to-image", "image-to-image"),
        "qualities": qualities,
    }
    return SPEC.model_copy(update=update)


MEASURED = spec(
    guessed=Quality(guidance=GuidanceInterval(stop=0.1)),
    slow=preset(45.0, 0.8),
    fast=preset(30.0, 0.4),
    faster=preset(24.0, 0.2),
    other=preset(60.0, 0.1, steps=STEPS + 1),
    slower=preset(70.0, 1.2),
)


def resolved(model: ModelSpec, min_psnr_db: float, **more: Any) -> Any:
    body = {"prompt": "a cat", "quality": {"min_psnr_db": min_psnr_db}, **more}
    request = GenerateRequest.model_validate(body)
    return resolve(request, model, LimitSettings()).fields["quality"]


@pytest.mark.parametrize(
    ("wanted_db", "chosen"),
    [(20, "faster"), (24, "faster"), (24.1, "fast"), (31, "slow"), (50, "exact"), (90, "exact")],
)
def test_fastest_sufficient_preset_is_chosen(wanted_db: float, chosen: str) -> None:
    """`exact` is chosen if a sufficient preset is no faster, or none is known."""
    assert resolved(MEASURED, wanted_db) == chosen


def test_calibration_applies_to_the_calibrated_step_count() -> None:
    assert resolved(MEASURED, 50, num_inference_steps=STEPS + 1) == "other"


def test_steps_far_from_every_plan_are_refused_by_name() -> None:
    plans = PlannedCache(
        kind="planned", steps=8, whole=(0, 4), others=(StepPlan(steps=20, whole=(0, 9)),)
    )
    model = spec(
        several=Quality(step_cache=plans),
        single=Quality(step_cache=plans.model_copy(update={"others": ()})),
    )

    def served(name: str, steps: int) -> Any:
        body = {"prompt": "a cat", "quality": name, "num_inference_steps": steps}
        request = GenerateRequest.model_validate(body)
        return resolve(request, model, LimitSettings()).fields["quality"]

    assert [served("several", steps) for steps in (4, 16, 40)] == ["several"] * 3
    assert served("single", 50) == "single"
    for steps in (3, 41):
        with pytest.raises(Invalid) as refused:
            served("several", steps)
        [error] = refused.value.errors
        assert error.field == "quality" and "'several' has plans for 8, 20 steps" in error.message


UNMEASURED = spec(guessed=MEASURED.qualities["guessed"])
ELSEWHERE: list[tuple[ModelSpec, dict[str, Any]]] = [
    (MEASURED, {"num_inference_steps": 7}),
    (MEASURED, {"image": "eA=="}),
    (UNMEASURED, {}),
    (spec(), {}),
]
"""Requests for which no preset was measured."""


@pytest.mark.parametrize(("model", "more"), ELSEWHERE)
def test_exact_remains_without_measurements(model: ModelSpec, more: dict[str, Any]) -> None:
    assert resolved(model, 28, **more) == "exact"


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (MEASURED, {"quality": {"min_psnr_db": 90}}, "the closest is 'slower', with 70 dB"),
        (MEASURED, {"num_inference_steps": 7}, f"one pass of {STEPS}, {STEPS + 1} steps"),
        (MEASURED, {"image": "eA=="}, "text-to-image in one pass"),
        (UNMEASURED, {}, "have not been measured"),
    ],
)
def test_model_without_exact_lists_its_presets(
    model: ModelSpec, more: dict[str, Any], said: str
) -> None:
    narrow = {"has_exact": False, "defaults": {**model.defaults, "quality": "guessed"}}
    with pytest.raises(Invalid) as refused:
        resolved(model.model_copy(update=narrow), 28, **more)
    assert any(
        error.field == "quality.min_psnr_db" and said in error.message
        for error in refused.value.errors
    ), refused.value.errors


def test_model_without_quality_rejects_a_minimum_psnr() -> None:
    with pytest.raises(Invalid, match="has no presets"):
        resolved(SPEC, 28)
