"""The measured table decides how many rows share a step."""

from __future__ import annotations

import pytest

from workers.step_times import MEMORY, REFRESH, TRIALS, StepTimes

SIZES = [1, 2, 4]


def measured(**seconds: float) -> StepTimes:
    """A table that believes these: measured(s1=0.1, s4=0.3)."""
    times = StepTimes()
    for name, value in seconds.items():
        for _ in range(TRIALS):
            times.observe(int(name[1:]), value)
    return times


@pytest.mark.parametrize(
    ("seconds", "count", "size"),
    [
        ({"s1": 1.0, "s2": 1.0, "s4": 1.0}, 3, 4),  # company is free: pad
        ({"s1": 1.0, "s2": 2.0, "s4": 4.0}, 4, 1),  # it gains nothing: the smallest, no padding
        ({"s1": 1.0, "s2": 1.5, "s4": 3.0}, 3, 2),  # a pair at 0.75 a row beats a padded four at 1
        ({"s1": 1.0, "s2": 1.5, "s4": 2.1}, 3, 4),  # a padded four at 0.7 a row beats a pair
        ({"s1": 1.0, "s2": 3.0, "s4": 9.0}, 4, 1),  # it costs: one by one
        ({"s1": 1.0, "s2": 0.5, "s4": 0.5}, 1, 1),  # never padded past an exact fit
    ],
)
def test_least_time_a_row(seconds: dict[str, float], count: int, size: int) -> None:
    assert measured(**seconds).best(count, SIZES) == size


def test_every_size_gets_its_trials_before_it_is_judged() -> None:
    times, taken = StepTimes(), []
    for _ in range(3 * TRIALS):
        size = times.best(4, SIZES)
        taken.append(size)
        times.observe(size, {1: 1.0, 2: 3.0, 4: 9.0}[size])
    assert all(taken.count(size) == TRIALS for size in SIZES)
    assert times.best(4, SIZES) == 1


def test_one_slow_step_does_not_condemn_a_size() -> None:
    times = measured(s1=1.0, s4=1.0)
    times.observe(4, 100.0)
    assert times.best(4, [1, 4]) == 4


def test_the_table_follows_the_machine_and_gives_second_chances() -> None:
    times = measured(s1=1.0, s4=8.0)
    assert times.best(4, [1, 4]) == 1
    for _ in range(MEMORY):
        times.observe(1, 5.0)
    assert times.best(4, [1, 4]) == 4
    times = measured(s1=1.0, s4=8.0)
    for _ in range(REFRESH):
        times.observe(1, 1.0)
    assert times.best(4, [1, 4]) == 4, "after a while it is tried again"
