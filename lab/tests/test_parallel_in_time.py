"""Parallel steps on a problem with a known solution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lab.bench.parallel_in_time import in_parallel

STEPS = 12
START = np.asarray([[2.0, -1.0], [0.5, 3.0]])


def run(first: int, before: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Steps that depend on their index and input."""
    return [x - (first + offset + 1) / 40 * np.tanh(x) for offset, x in enumerate(before)]


def sequential() -> np.ndarray:
    x = START
    for number in range(STEPS):
        (x,) = run(number, [x])
    return x


@pytest.mark.parametrize("window", [1, 3, STEPS, 2 * STEPS])
def test_without_tolerance_it_is_the_sequential_answer(window: int) -> None:
    result = in_parallel(START, STEPS, window, 0.0, run)
    np.testing.assert_allclose(result.latents, sequential(), rtol=1e-12)
    assert result.rounds <= STEPS
    if window == 1:
        assert (result.rounds, result.evaluations) == (STEPS, STEPS)


def test_steps_from_correct_guesses_are_kept() -> None:
    """Three steps finish in the round in which the first two guesses hold."""
    moves = np.asarray([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])

    def constant(first: int, before: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [x + moves[first + offset] for offset, x in enumerate(before)]

    result = in_parallel(np.zeros(1), 6, 3, 0.0, constant)
    assert result.latents == [9.0] and result.rounds == 3


def test_tolerance_buys_rounds_with_evaluations() -> None:
    strict, loose = (in_parallel(START, STEPS, 4, tolerance, run) for tolerance in (1e-6, 1e-2))
    assert loose.rounds < strict.rounds <= STEPS < loose.evaluations
    errors = [float(np.abs(result.latents - sequential()).max()) for result in (strict, loose)]
    assert errors[0] < 1e-5 < errors[1] < 0.05
