"""Step plans from recorded residuals: an estimate's error, and the plans with the least error."""

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
    """Return a recording of one image whose latents move equally far in every step."""
    return StepRecording((residuals @ residuals.T)[None], np.ones((1, len(residuals))))


def line() -> np.ndarray:
    """Return residuals on a straight line."""
    rng = np.random.default_rng(1)
    start, slope = rng.normal(size=(2, WIDTH))
    return start + np.arange(STEPS)[:, None] * slope


def wild() -> np.ndarray:
    return np.cumsum(np.random.default_rng(2).normal(size=(STEPS, WIDTH)), axis=0)


def loss(record: StepRecording, method: Method, whole: tuple[int, ...], turns: list[bool]) -> float:
    """Return the total error of a plan, added up step by step as the plan runs."""
    plan, history, total = method.plan(whole, record), list[int](), 0.0
    for step, weights in enumerate(plan.weights(turns)):
        history = [] if turns[step] else history
        if any(weights):
            count = len(history)
            total += record.miss(step, history, weights[:count])
        else:
            history = [step, *history][: plan.depth]
    return total


def test_a_miss_is_the_distance_of_the_estimate() -> None:
    residuals = wild()
    estimate = 1.5 * residuals[3] - 0.5 * residuals[1]
    expected = np.linalg.norm(residuals[5] - estimate) / np.linalg.norm(residuals[5])
    record = recording(residuals)
    assert record.miss(5, (3, 1), (1.5, -0.5)) == pytest.approx(expected)
    further = StepRecording(record.products, 3 * record.moves)
    assert further.miss(5, (3, 1), (1.5, -0.5)) == pytest.approx(3 * expected)


def test_taylor_needs_two_steps_of_a_line() -> None:
    plans = best_plans(recording(line()), Method("taylor"), NO_TURN)
    assert plans[2].whole == (0, 1)
    assert loss(recording(line()), Method("taylor"), (0, 1), NO_TURN) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("turned", [None, 3])
def test_best_plan_has_the_lowest_error_of_all_plans(method: Method, turned: int | None) -> None:
    """Compare with every possible plan."""
    record, turns = recording(wild()), [step == turned for step in range(STEPS)]
    forced = {0} | ({turned} if turned is not None else set())
    best = best_plans(record, method, turns)
    for count in range(len(forced), STEPS + 1):
        candidates = [
            tuple(sorted(forced | set(others)))
            for others in combinations(set(range(STEPS)) - forced, count - len(forced))
        ]
        least = min(loss(record, method, whole, turns) for whole in candidates)
        assert loss(record, method, best[count].whole, turns) == pytest.approx(least)


def test_numbers_of_whole_steps_are_fewer_than_all() -> None:
    assert numbers_of_whole_steps(16) == [2, 3, 4, 5, 6, 7, 8, 10, 12]
    assert numbers_of_whole_steps(3) == [2] and numbers_of_whole_steps(1) == []
