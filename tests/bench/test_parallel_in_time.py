"""Several steps at once, of a problem whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.bench.parallel_in_time import in_parallel

STEPS = 12
START = np.asarray([[2.0, -1.0], [0.5, 3.0]])


def run(first: int, before: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Steps that differ by their place, and by what comes before them."""
    return [x - (first + place + 1) / 40 * np.tanh(x) for place, x in enumerate(before)]


def sequential() -> np.ndarray:
    x = START
    for number in range(STEPS):
        (x,) = run(number, [x])
    return x


@pytest.mark.parametrize("window", [1, 3, STEPS, 2 * STEPS])
def test_without_tolerance_it_is_the_sequential_answer(window: int) -> None:
    found = in_parallel(START, STEPS, window, 0.0, run)
    np.testing.assert_allclose(found.latents, sequential(), rtol=1e-12)
    assert found.rounds <= STEPS
    if window == 1:
        assert (found.rounds, found.evaluations) == (STEPS, STEPS)


def test_what_was_drawn_on_guesses_that_held_is_kept() -> None:
    """Three steps are done in the round in which the first two guesses hold."""
    moves = np.asarray([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])

    def constant(first: int, before: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [x + moves[first + place] for place, x in enumerate(before)]

    found = in_parallel(np.zeros(1), 6, 3, 0.0, constant)
    assert found.latents == [9.0] and found.rounds == 3


def test_tolerance_buys_rounds_with_evaluations() -> None:
    strict, loose = (in_parallel(START, STEPS, 4, tolerance, run) for tolerance in (1e-6, 1e-2))
    assert loose.rounds < strict.rounds <= STEPS < loose.evaluations
    off = [float(np.abs(one.latents - sequential()).max()) for one in (strict, loose)]
    assert off[0] < 1e-5 < off[1] < 0.05
