"""Plans by recorded residuals: what an estimate misses, and the plans that miss least."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from workers.calibration.search import (
    METHODS,
    Method,
    StepRecording,
    best_plans,
    numbers_of_whole_steps,
)

STEPS, WIDTH = 7, 40
NO_TURN = [False] * STEPS


def recording(residuals: np.ndarray) -> StepRecording:
    """Of one image, whose steps all move it as far."""
    return StepRecording((residuals @ residuals.T)[None], np.ones((1, len(residuals))))


def line() -> np.ndarray:
    """Residuals on a straight line."""
    rng = np.random.default_rng(1)
    start, slope = rng.normal(size=(2, WIDTH))
    return start + np.arange(STEPS)[:, None] * slope


def wild() -> np.ndarray:
    return np.cumsum(np.random.default_rng(2).normal(size=(STEPS, WIDTH)), axis=0)


def loss(found: StepRecording, method: Method, whole: tuple[int, ...], turns: list[bool]) -> float:
    """What a plan misses, added up step by step as the plan itself would run."""
    plan, behind, lost = method.plan(whole, found), list[int](), 0.0
    for step, weights in enumerate(plan.weights(turns)):
        behind = [] if turns[step] else behind
        if any(weights):
            count = len(behind)
            lost += found.miss(step, behind, weights[:count])
        else:
            behind = [step, *behind][: plan.depth]
    return lost


def test_a_miss_is_the_distance_of_the_estimate() -> None:
    residuals = wild()
    estimate = 1.5 * residuals[3] - 0.5 * residuals[1]
    expected = np.linalg.norm(residuals[5] - estimate) / np.linalg.norm(residuals[5])
    found = recording(residuals)
    assert found.miss(5, (3, 1), (1.5, -0.5)) == pytest.approx(expected)
    further = StepRecording(found.products, 3 * found.moves)
    assert further.miss(5, (3, 1), (1.5, -0.5)) == pytest.approx(3 * expected)


def test_taylor_needs_two_steps_of_a_line() -> None:
    found = best_plans(recording(line()), Method("taylor"), NO_TURN)
    assert found[2].whole == (0, 1)
    assert loss(recording(line()), Method("taylor"), (0, 1), NO_TURN) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("turned", [None, 3])
def test_no_plan_of_as_many_whole_steps_loses_less(method: Method, turned: int | None) -> None:
    """Against every plan there is."""
    found, turns = recording(wild()), [step == turned for step in range(STEPS)]
    forced = {0} | ({turned} if turned is not None else set())
    best = best_plans(found, method, turns)
    for count in range(len(forced), STEPS + 1):
        chances = [
            tuple(sorted(forced | set(others)))
            for others in combinations(set(range(STEPS)) - forced, count - len(forced))
        ]
        least = min(loss(found, method, whole, turns) for whole in chances)
        assert loss(found, method, best[count].whole, turns) == pytest.approx(least)


def test_numbers_of_whole_steps_are_fewer_than_all() -> None:
    assert numbers_of_whole_steps(16) == [2, 3, 4, 5, 6, 7, 8, 10, 12]
    assert numbers_of_whole_steps(3) == [2] and numbers_of_whole_steps(1) == []
