"""Shares of time in made-up recordings, computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.profiling.breakdown import (
    Kind,
    ProfiledOp,
    Recording,
    kind_of,
    merged,
    minus,
    report,
    total,
)

STEP = "jit_step"
C, M, P, F = Kind.COMPUTE, Kind.COMMUNICATION, Kind.OTHER, Kind.FRAME
ROUNDING = 1e-9
"""Rounding of sums of a few dozen float64 of at most 100."""


@pytest.mark.parametrize(
    ("name", "program", "category", "kind"),
    [
        ("all-gather.3", STEP, "", M),
        ("all-gather-start.1", "jit_step(17)", "", M),
        ("all-reduce-scatter", STEP, "", M),
        ("%all-to-all.2 = bf16[8]{0} all-to-all(%fusion)", STEP, "", M),
        ("collective-permute-done", STEP, "", M),
        ("reduce-scatter.1", STEP, "", M),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None, "", M),
        ("ncclKernel_SendRecv", STEP, "", M),
        ("async-collective-fusion.4", STEP, "", M),
        ("fusion.9", STEP, "all-gather", M),
        ("recv-done.1", STEP, "", M),
        ("reduce.3", STEP, "", C),
        ("fusion.9 = f32[2] fusion(%all-gather.3)", STEP, "", C),
        ("gather.1", STEP, "", C),
        ("sender_fusion", STEP, "", C),
        ("loop_fusion", None, "", C),
        ("while.5", STEP, "", F),
        ("%while.5 = (s32[]) while(%tuple)", STEP, "", F),
        ("call.1", STEP, "", F),
        ("custom-call.1", STEP, "", C),
        ("all-gather.3", "jit_pixels", "", P),
        ("fusion", "jit_encode", "", P),
        ("fusion", "jit_step_size", "", P),
    ],
)
def test_an_operation_is_of_one_kind(
    name: str, program: str | None, category: str, kind: Kind
) -> None:
    assert kind_of(name, program, category) is kind


def recording(*ops: ProfiledOp, steps: tuple[float, ...] = (0, 10), **more: object) -> Recording:
    return Recording({"cpu:0": ops}, steps, **{"no_work": (), **more})


def test_window_is_divided_into_categories() -> None:
    """Computed by hand: compute 1-3 and 6-7, only communication 3-5, decoding 7-8, no work
    from 9."""
    recorded = recording(
        ProfiledOp("fusion.1", C, 1, 3),
        ProfiledOp("all-gather", M, 2, 5),
        ProfiledOp("fusion.2", C, 6, 7),
        ProfiledOp("decode", P, 6.5, 8),
        no_work=[(9, 11)],
    )
    result = report(recorded, 10)
    assert result is not None
    assert (result.steps, result.window_s, result.devices) == (1, 10, 1)
    assert (result.compute_s, result.communication_s, result.other_s) == (3, 2, 1)
    assert (result.waiting_s, result.no_work_s, result.hidden_s) == (3, 1, 1)
    assert result.communication_share == pytest.approx(2 / 9)
    assert [(op.name, op.seconds) for op in result.top[:2]] == [("all-gather", 3), ("fusion.1", 2)]


def test_loop_without_communication_counts_as_compute() -> None:
    result = report(
        recording(ProfiledOp("while.1", F, 0, 10), ProfiledOp("all-gather", M, 4, 6)), 10
    )
    assert result is not None
    assert (result.compute_s, result.communication_s, result.waiting_s) == (8, 2, 0)
    assert [op.name for op in result.top] == ["all-gather"], "a loop is no operation of its own"


def test_only_requested_steps_are_counted() -> None:
    ops = [ProfiledOp("fusion", C, start, start + 0.5) for start in range(10)]
    result = report(recording(*ops, steps=(2, 1, 4, 3, 9)), 2)
    assert result is not None
    assert (result.steps, result.window_s, result.compute_s) == (2, 2, 1)
    assert report(recording(*ops, steps=(2,)), 2) is None
    assert report(Recording({}, (1, 2), ()), 2) is None


def test_devices_are_averaged() -> None:
    two = Recording(
        {"a": [ProfiledOp("f", C, 0, 10)], "b": [ProfiledOp("all-reduce", M, 0, 5)]}, (0, 10), ()
    )
    result = report(two, 10)
    assert result is not None
    assert (result.devices, result.compute_s, result.communication_s) == (2, 5, 2.5)
    assert result.waiting_s == 2.5


SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda s: (float(s[0]), float(sum(s)))),
    max_size=12,
)


@given(SPANS, SPANS)
def test_moments_are_taken_away_one_by_one(some: list, others: list) -> None:
    """Compare with counting whole seconds: all intervals end at whole seconds."""
    left = minus(merged(some), merged(others))

    def has(spans: list, second: int) -> bool:
        return any(start <= second < end for start, end in spans)

    for second in range(60):
        assert has(left, second) == (has(some, second) and not has(others, second))
    assert total(left) == sum(has(left, second) for second in range(60))


@given(SPANS, SPANS, SPANS, SPANS, SPANS)
def test_parts_sum_to_the_window(
    compute: list, talk: list, other: list, frames: list, idle: list
) -> None:
    kinds = ((C, compute), (M, talk), (P, other), (F, frames))
    ops = [ProfiledOp("x", kind, start, end) for kind, spans in kinds for start, end in spans]
    shares = report(recording(*ops, steps=(7, 42.5), no_work=idle), 10)
    assert shares is not None
    parts = (
        shares.compute_s, shares.communication_s, shares.other_s, shares.waiting_s,
        shares.no_work_s,
    )  # fmt: skip
    assert sum(parts) == pytest.approx(35.5, abs=ROUNDING)
    assert min(*parts, shares.hidden_s) >= -ROUNDING
