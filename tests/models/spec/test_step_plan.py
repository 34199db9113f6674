"""Planned step caches: weights per step, stretched plans, and invalid plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from models.spec.quality_presets import Quality
from models.spec.step_plan import PlannedCache, StepPlan, spectral_weights, taylor_weights

NO_TURN = [False] * 8


def plan(*whole: int, steps: int = 8, **more: Any) -> PlannedCache:
    return PlannedCache(kind="planned", steps=steps, whole=whole, **more)


def test_reuse_weights_the_last_whole_step() -> None:
    assert plan(0, 1, 4).weights(NO_TURN) == [
        *[(0.0,)] * 2, *[(1.0,)] * 2, (0.0,), *[(1.0,)] * 3
    ]  # fmt: skip


def test_plan_runs_first_step_and_step_kind_changes_in_full() -> None:
    changes = [step == 4 for step in range(8)]
    weights = plan(1, 2, estimate="taylor").weights(changes)
    assert [any(step_weights) for step_weights in weights] == [
        False,
        False,
        False,
        True,
        False,
        True,
        True,
        True,
    ]
    assert weights[3] == (2.0, -1.0)
    assert weights[5] == (1.0, 0.0), "only one whole step of this step kind precedes"


def test_magnitude_estimate_is_the_ratio_to_the_last_full_step() -> None:
    magnitude_plan = plan(0, 2, steps=4, estimate="magnitude", magnitudes=(1.0, 2.0, 4.0, 5.0))
    assert magnitude_plan.weights(NO_TURN[:4]) == [(0.0,), (2.0,), (0.0,), (1.25,)]
    stretched = magnitude_plan.weights(NO_TURN)
    assert stretched[1] == pytest.approx((1.5,)) and stretched[3] == pytest.approx((3.0,))


def test_image_has_the_plan_with_the_nearest_number_of_steps() -> None:
    others = (StepPlan(steps=16, whole=(0, 5, 10)), StepPlan(steps=50, whole=(0, 20)))
    cache = plan(0, 4, others=others)

    def full(steps: int) -> list[int]:
        weights = cache.weights([False] * steps)
        return [step for step, of_step in enumerate(weights) if not any(of_step)]

    assert full(8) == [0, 4] and full(16) == [0, 5, 10] and full(50) == [0, 20]
    assert full(10) == [0, 5], "8 stretched, by the ratio of steps"
    assert full(12) == [0, 3, 7], "16 stretched: 12 is nearer to it by ratio"
    assert [steps for steps in range(1, 120) if cache.serves(steps)] == [*range(4, 101)]
    assert plan(0, 4).serves(1000), "a single plan is stretched to any number"


@pytest.mark.parametrize(
    "others",
    [[{"steps": 8, "whole": [0]}], [{"steps": 9, "whole": [0]}] * 2,
     [{"steps": 4, "whole": [4]}], [{"steps": 2, "whole": [0], "magnitudes": [1.0, 1.0]}]],
)  # fmt: skip
def test_invalid_further_plans_are_refused(others: list[dict[str, Any]]) -> None:
    with pytest.raises(ValidationError):
        plan(0, 4, others=others)


@pytest.mark.parametrize("behind", [(4,), (4, 3), (5, 2), (5, 4, 1), (6, 3, 2)])
def test_taylor_is_exact_up_to_its_order(behind: tuple[int, ...]) -> None:
    """Exact for constants and lines; for parabolas the divided differences."""
    at = behind[0] + 2
    for function in (lambda t: 3.0, lambda t: 2.0 * t - 1)[: len(behind)]:
        estimate = sum(
            w * function(t) for w, t in zip(taylor_weights(at, behind), behind, strict=True)
        )
        assert estimate == pytest.approx(function(at))


def test_taylor_of_second_order_follows_the_published_recursion() -> None:
    """Divided differences of divided differences, over the distance of the two newer whole
    steps.
    """
    steps, values, distance = (7, 4, 2), (3.0, -1.0, 5.0), 2
    newer = (values[0] - values[1]) / (steps[0] - steps[1])
    older = (values[1] - values[2]) / (steps[1] - steps[2])
    bend = (newer - older) / (steps[0] - steps[1])
    expected = values[0] + distance * newer + distance**2 / 2 * bend
    estimate = sum(w * v for w, v in zip(taylor_weights(7 + distance, steps), values, strict=True))
    assert estimate == pytest.approx(expected)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("earlier", [(3,), (4, 1), (5, 3, 2)])
def test_spectral_weights_keep_constants(earlier: tuple[int, ...], order: int) -> None:
    assert sum(spectral_weights(7, earlier, 8, order)) == pytest.approx(1)


def test_spectral_weights_are_those_of_a_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the penalty, a parabola through three steps, or the nearest line."""
    monkeypatch.setattr("models.spec.step_plan.RIDGE", 0.0)
    earlier, values = (5, 3, 2), (3.0, -1.0, 5.0)
    for order in (1, 2):
        expected = np.polyval(np.polyfit(earlier, values, order), 7)
        weights = spectral_weights(7, earlier, 8, order)
        assert np.dot(weights, values) == pytest.approx(expected)


def test_a_plan_is_stretched_over_other_numbers_of_steps() -> None:
    def whole(steps: int) -> list[int]:
        weights = plan(0, 1, 4).weights([False] * steps)
        return [step for step, step_weights in enumerate(weights) if not any(step_weights)]

    assert whole(8) == [0, 1, 4] and whole(16) == [0, 2, 8] and whole(4) == [0, 2]
    assert whole(1) == [0] and whole(0) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 4, "whole": [0, 4]}, "stay below the 4 steps"),
        ({"steps": 4, "whole": [2, 1]}, "must rise"),
        ({"steps": 4, "whole": []}, "at least 1 item"),
        ({"steps": 2, "whole": [0], "estimate": "magnitude"}, "which needs them"),
        ({"steps": 2, "whole": [0], "magnitudes": [1, 1]}, "which needs them"),
        ({"steps": 2, "whole": [0], "order": 2}, "belongs to the estimates taylor, spectral"),
        (
            {"steps": 2, "whole": [0], "order": 2, "estimate": "magnitude", "magnitudes": [1, 1]},
            "belongs to the estimates taylor, spectral",
        ),
        (
            {"steps": 2, "whole": [0], "estimate": "magnitude", "magnitudes": [1, 0]},
            "2 numbers above 0",
        ),
        ({"steps": 2, "whole": [0], "order": 3}, "less than or equal to 2"),
        ({"steps": 2, "whole": [0], "threshold": 0.1}, "not permitted"),
    ],
)
def test_invalid_plan_is_rejected_with_its_reason(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Quality.model_validate({"step_cache": {"kind": "planned", **wrong}})


def test_plans_of_equal_depth_share_batches() -> None:
    def key(cache: PlannedCache) -> str:
        return Quality(step_cache=cache).key

    ratios = plan(0, 3, estimate="magnitude", magnitudes=(1.0,) * 8)
    assert key(plan(0, 1)) == key(ratios) == "planned"
    assert key(plan(0, 1, estimate="taylor")) == key(plan(0, 5, estimate="taylor")) == "planned-2"
    assert key(plan(0, 1, estimate="taylor", order=2)) == "planned-3"
