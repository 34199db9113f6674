"""Number of rows that share a step, chosen by measured times."""

from __future__ import annotations

import pytest

from workers.programs.step_latency import MEMORY, REFRESH, TRIALS, BatchLayout, StepTimes

SIZES = [BatchLayout(1), BatchLayout(2), BatchLayout(4)]


def measured(**seconds: float) -> StepTimes:
    """Return a table with these step times: measured(s1=0.1, s4=0.3)."""
    times = StepTimes()
    for name, value in seconds.items():
        for _ in range(TRIALS):
            times.observe(BatchLayout(int(name[1:])), value)
    return times


@pytest.mark.parametrize(
    ("seconds", "count", "size"),
    [
        ({"s1": 1.0, "s2": 1.0, "s4": 1.0}, 3, 4),  # larger batches are free: pad
        (
            {"s1": 1.0, "s2": 2.0, "s4": 4.0},
            4,
            1,
        ),  # larger batches gain nothing: the smallest, no padding
        ({"s1": 1.0, "s2": 1.5, "s4": 3.0}, 3, 2),  # a pair at 0.75 a row beats a padded four at 1
        ({"s1": 1.0, "s2": 1.5, "s4": 2.1}, 3, 4),  # a padded four at 0.7 a row beats a pair
        ({"s1": 1.0, "s2": 3.0, "s4": 9.0}, 4, 1),  # larger batches cost more: one by one
        ({"s1": 1.0, "s2": 0.5, "s4": 0.5}, 1, 1),  # never padded past an exact fit
    ],
)
def test_least_time_a_row(seconds: dict[str, float], count: int, size: int) -> None:
    assert measured(**seconds).best(count, SIZES).size == size


def test_every_size_is_tried_before_it_is_judged() -> None:
    times, taken = StepTimes(), []
    for _ in range(3 * TRIALS):
        batch_layout = times.best(4, SIZES)
        taken.append(batch_layout)
        times.observe(batch_layout, {1: 1.0, 2: 3.0, 4: 9.0}[batch_layout.size])
    assert all(taken.count(batch_layout) == TRIALS for batch_layout in SIZES)
    assert times.best(4, SIZES) == BatchLayout(1)


def test_single_slow_step_does_not_exclude_a_size() -> None:
    times = measured(s1=1.0, s4=1.0)
    times.observe(BatchLayout(4), 100.0)
    assert times.best(4, [BatchLayout(1), BatchLayout(4)]) == BatchLayout(4)


def test_the_table_follows_the_machine_and_gives_second_chances() -> None:
    times = measured(s1=1.0, s4=8.0)
    assert times.best(4, [BatchLayout(1), BatchLayout(4)]) == BatchLayout(1)
    for _ in range(MEMORY):
        times.observe(BatchLayout(1), 5.0)
    assert times.best(4, [BatchLayout(1), BatchLayout(4)]) == BatchLayout(4)
    times = measured(s1=1.0, s4=8.0)
    for _ in range(REFRESH):
        times.observe(BatchLayout(1), 1.0)
    assert times.best(4, [BatchLayout(1), BatchLayout(4)]) == BatchLayout(4), (
        "after a while it is tried again"
    )


WIDE, APART = BatchLayout(4), BatchLayout(4, 4)
"""Four rows: one after the other on all devices, or each on a quarter of them."""


@pytest.mark.parametrize(
    ("together", "apart", "chosen"), [(4.0, 2.0, APART), (2.0, 4.0, WIDE), (1.0, 1.0, WIDE)]
)
def test_the_faster_layout_is_chosen(together: float, apart: float, chosen: BatchLayout) -> None:
    times = StepTimes()
    for _ in range(TRIALS):
        times.observe(WIDE, together)
        times.observe(APART, apart)
    assert times.best(4, [WIDE, APART]) == chosen


def test_untried_batch_layout_is_tried() -> None:
    times = measured(s1=1.0, s4=4.0)
    for _ in range(TRIALS):
        assert times.best(4, [BatchLayout(1), WIDE, APART]) == APART
        times.observe(APART, 40.0)
    assert times.best(4, [BatchLayout(1), WIDE, APART]) == BatchLayout(1)


def test_a_single_row_has_the_whole_slice() -> None:
    assert measured(s1=9.0).best(
        1, [BatchLayout(1), BatchLayout(2), BatchLayout(2, 2)]
    ) == BatchLayout(1)


def test_too_few_rows_for_an_exact_fit_may_be_padded_in_any_layout() -> None:
    times = measured(s1=1.0, s2=1.9, s4=3.6)
    for _ in range(TRIALS):
        times.observe(BatchLayout(2, 2), 1.0)
        times.observe(APART, 1.2)
    assert times.best(3, [BatchLayout(1), BatchLayout(2), BatchLayout(2, 2), WIDE, APART]) == APART
