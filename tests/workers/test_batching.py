"""Who goes next, and with whom."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import count

import numpy as np

from models.pipeline import Step
from workers.batching import next_batch
from workers.row import Row
from workers.shape import Phase, Shape


def shape(*sizes: int) -> Shape:
    """Two phases whose programs add each row's scalar to it."""

    def program(weights, rows, values):  # type: ignore[no-untyped-def]
        return tuple(r + s for r, s in zip(rows, values["add"], strict=True)), None

    made = Shape("a")
    for name in ("first", "second"):
        made.phases[name] = Phase(name)
        for size in sizes:
            made.phases[name].programs[size] = Future()
            made.phases[name].programs[size].set_result(program)
    return made


def row(shape: Shape, phase: str = "first", steps: int = 9, add: float = 1.0) -> Row:
    step = Step(phase, {"add": np.float32(add)})
    return Row(shape, (step,) * steps, 0.0, lambda row: None, lambda row, failure: None)


def take_turns(rows: list[Row], turns: int) -> list[list[int]]:
    """Which rows, by number, go in each turn."""
    taken, tickets = [], count(1)
    for _ in range(turns):
        batch = next_batch(rows)
        for one in batch.rows:
            one.send(None, next(tickets))
            one.done = one.sent
        taken.append([rows.index(one) for one in batch.rows])
    return taken


def test_rows_of_a_phase_advance_at_one_pace() -> None:
    one = shape(1, 2)
    rows = [row(one) for _ in range(3)]
    assert take_turns(rows, 3) == [[0, 1], [2, 0], [1, 2]]
    assert [r.sent for r in rows] == [2, 2, 2]


def test_phases_take_turns() -> None:
    one = shape(1, 2, 4)
    rows = [row(one), row(one), row(one, "second"), row(shape(1))]
    assert take_turns(rows, 6) == [[0, 1], [2], [3]] * 2


def test_a_row_in_doubt_goes_alone_and_not_ahead() -> None:
    one = shape(1, 2, 4)
    rows = [row(one) for _ in range(3)]
    rows[1].rewind()
    assert take_turns(rows, 2) == [[0, 2], [1]]
    rows[1].sent += 1
    assert not rows[1].sendable


def test_nothing_to_send() -> None:
    one = row(shape(1), steps=1)
    other = row(shape(1))
    one.send(None, 1)
    other.canceled = True
    assert next_batch([one, other]) is None


def test_padding_repeats_a_real_row_and_each_row_has_its_own_scalars() -> None:
    one = shape(4)
    batch = next_batch([row(one, add=add) for add in (1, 2, 3)])
    states, _ = batch.run([])
    assert states == (1, 2, 3, 3)


def test_a_size_that_ran_out_of_memory_is_not_used_again() -> None:
    phase = shape(1, 2, 4).phases["first"]
    phase.shrink(4)
    assert phase.sizes == [1, 2]
    phase.shrink(2)
    phase.shrink(4)  # told late: a batch that was on its way
    assert phase.sizes == [1]
