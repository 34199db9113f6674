"""Composition of batches: order of rows and phases, swaps of experts."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from itertools import count
from types import MappingProxyType

import numpy as np

from models.interface.pipeline import Step
from models.interface.step_program import StepProgram
from workers.engine.batching import next_batch
from workers.engine.row import Row
from workers.programs.bucket_programs import BucketPrograms, StepKind
from workers.programs.step_latency import BatchLayout


def shape(*sizes: int, experts: Mapping[str, str] = MappingProxyType({})) -> BucketPrograms:
    """Return programs of two phases that add each row's value to its state."""

    def program(weights, rows, values):
        return tuple(r + s for r, s in zip(rows, values["add"], strict=True)), None

    bucket = BucketPrograms("a")
    for name in ("first", "second"):
        bucket.step_kinds[StepProgram(name)] = StepKind(StepProgram(name), experts.get(name))
        for size in sizes:
            bucket.step_kinds[StepProgram(name)].programs[BatchLayout(size)] = Future()
            bucket.step_kinds[StepProgram(name)].programs[BatchLayout(size)].set_result(program)
    return bucket


def row(shape: BucketPrograms, phase: str = "first", steps: int = 9, add: float = 1.0) -> Row:
    step = Step(StepProgram(phase), {"add": np.float32(add)})
    return Row(shape, (step,) * steps, 0.0, lambda row: None, lambda row, failure: None)


def test_batch_work_is_the_mean_with_padding_as_the_last_row() -> None:
    programs = shape(4)
    light, heavy = row(programs), row(programs)
    heavy.steps = (Step(StepProgram("first"), {"add": np.float32(1)}, work=2.0), *heavy.steps[1:])
    batch = next_batch([light, heavy])
    assert batch is not None and batch.work == (1 + 3 * 2) / 4
    light.send(None, 1)
    heavy.send(None, 2)
    assert batch.work == 1.0


def take_turns(rows: list[Row], turns: int) -> list[list[int]]:
    """Return the rows of each turn's batch, by number."""
    taken, tickets = [], count(1)
    for _ in range(turns):
        batch = next_batch(rows)
        for member in batch.rows:
            member.send(None, next(tickets))
            member.done = member.sent
        taken.append([rows.index(member) for member in batch.rows])
    return taken


def test_rows_of_a_phase_advance_at_one_pace() -> None:
    programs = shape(1, 2)
    rows = [row(programs) for _ in range(3)]
    assert take_turns(rows, 3) == [[0, 1], [2, 0], [1, 2]]
    assert [r.sent for r in rows] == [2, 2, 2]


def test_step_kinds_alternate() -> None:
    programs = shape(1, 2, 4)
    rows = [row(programs), row(programs), row(programs, "second"), row(shape(1))]
    assert take_turns(rows, 6) == [[0, 1], [2], [3]] * 2


def test_doubtful_row_runs_separately_and_not_ahead() -> None:
    programs = shape(1, 2, 4)
    rows = [row(programs) for _ in range(3)]
    rows[1].rewind()
    assert take_turns(rows, 2) == [[0, 2], [1]]
    rows[1].sent += 1
    assert not rows[1].sendable


def test_no_sendable_rows() -> None:
    sent = row(shape(1), steps=1)
    other = row(shape(1))
    sent.send(None, 1)
    other.canceled = True
    assert next_batch([sent, other]) is None


def test_padding_repeats_a_real_row_and_each_row_has_its_own_values() -> None:
    programs = shape(4)
    batch = next_batch([row(programs, add=add) for add in (1, 2, 3)])
    states, _ = batch.run([])
    assert states == (1, 2, 3, 3)


def test_values_that_are_arrays_are_stacked() -> None:
    adds = [np.full((2, 3), add, np.float32) for add in (1, 2)]
    programs = shape(2)
    batch = next_batch([row(programs, add=add) for add in adds])
    states, _ = batch.run([])
    assert [state.tolist() for state in states] == [add.tolist() for add in adds]


EXPERTS = {"first": "high", "second": "low"}


def two_phases(programs: BucketPrograms, first: int, second: int) -> Row:
    steps = (Step(StepProgram("first"), {}),) * first + (Step(StepProgram("second"), {}),) * second
    return Row(programs, steps, 0.0, lambda row: None, lambda row, failure: None)


def swaps(arriving: Mapping[int, Row], turns: int, slots: int) -> tuple[list[str], list[Row]]:
    """Return the experts in the order of their swaps, and the rows in the order of their ends.

    Args:
        arriving: Rows by the turn in which they arrive.
    """
    resident, swapped_in, seated, ended, waiting, tickets = None, [], [], [], [], count(1)
    for turn in range(turns):
        waiting += [arriving[turn]] if turn in arriving else []
        while waiting and len(seated) < slots:
            seated.append(waiting.pop(0))
            seated[-1].slot_ticket = next(tickets)
        batch = next_batch(seated, resident)
        if batch is None:
            continue
        if batch.step_kind.expert not in (None, resident):
            resident = batch.step_kind.expert
            swapped_in.append(resident)
        for member in batch.rows:
            member.send(None, next(tickets))
            member.done = member.sent
        ended += [member for member in seated if member.all_sent]
        seated = [member for member in seated if not member.all_sent]
    return swapped_in, ended


def test_batched_rows_swap_networks_together() -> None:
    """Rows of different lengths and buckets share one swap to each expert."""
    shapes = [shape(1, 2, 4, experts=EXPERTS), shape(1, experts=EXPERTS)]
    rows = [two_phases(shapes[i % 2], 3 + i, 7 - i) for i in range(4)]
    swapped_in, ended = swaps(dict(enumerate(rows)), 60, slots=4)
    assert swapped_in == ["high", "low"]
    assert len(ended) == 4


def test_sequential_rows_swap_once_per_row_and_expert() -> None:
    programs = shape(1, experts=EXPERTS)
    rows = [two_phases(programs, 2, 2) for _ in range(3)]
    swapped_in, ended = swaps(dict(enumerate(rows)), 20, slots=1)
    assert swapped_in == ["high", "low"] * 3
    assert ended == rows


def test_new_rows_do_not_starve_a_waiting_network() -> None:
    """One more row that needs only the first network arrives in every turn."""
    programs = shape(1, 2, 4, experts=EXPERTS)
    waiting_row = two_phases(programs, 2, 2)
    arriving = {turn: two_phases(programs, 3, 0) for turn in range(1, 60)}
    swapped_in, ended = swaps({0: waiting_row} | arriving, 60, slots=4)
    assert waiting_row in ended
    assert ended.index(waiting_row) < 5, "it waited for those that came after it"
    assert swapped_in[:2] == ["high", "low"]


def test_step_kind_without_swapped_network_does_not_wait() -> None:
    programs = shape(1, experts={"second": "low"})
    rows = [two_phases(programs, 9, 0), two_phases(programs, 0, 2)]
    swapped_in, ended = swaps(dict(enumerate(rows)), 20, slots=2)
    assert swapped_in == ["low"]
    assert ended == rows[::-1]


def test_uncertain_row_keeps_its_network_resident() -> None:
    """The row's step may have to be repeated with the network that is resident."""
    programs = shape(1, experts=EXPERTS)
    doubtful, absent = two_phases(programs, 3, 0), two_phases(programs, 0, 3)
    doubtful.retries_separately, doubtful.sent = True, 1
    absent.slot_ticket = 5
    assert next_batch([doubtful, absent], "high") is None
    doubtful.done, doubtful.retries_separately = 1, False
    assert next_batch([doubtful, absent], "high").rows == (doubtful,)


def test_batch_size_that_ran_out_of_memory_is_not_reused() -> None:
    phase = shape(1, 2, 4).step_kinds[StepProgram("first")]
    phase.shrink(BatchLayout(4))
    assert phase.batch_layouts == [BatchLayout(1), BatchLayout(2)]
    phase.shrink(BatchLayout(2))
    phase.shrink(BatchLayout(4))  # reported late, by a batch that was in flight
    assert phase.batch_layouts == [BatchLayout(1)]


def test_out_of_memory_disables_only_that_layout() -> None:
    phase = shape(1, 2, 4).step_kinds[StepProgram("first")]
    for batch_layout in (BatchLayout(2, 2), BatchLayout(4, 4)):
        phase.programs[batch_layout] = phase.programs[BatchLayout(1)]
    phase.shrink(BatchLayout(4, 4))
    assert phase.batch_layouts == [
        BatchLayout(1),
        BatchLayout(2),
        BatchLayout(2, 2),
        BatchLayout(4),
    ]
    phase.shrink(BatchLayout(1))
    assert BatchLayout(1) in phase.batch_layouts, "the last way out stays open"
