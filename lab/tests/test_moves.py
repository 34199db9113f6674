"""Traffic and operations parsed from a GPU program's text, including loops."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench.moves import BANDWIDTH, Move, by_kind, moves, table

TEXT = Path(__file__).with_name("gpu_step.hlo").read_text()


@pytest.fixture(scope="module")
def found() -> dict[str, Move]:
    return {move.name: move for move in moves(TEXT)}


def test_slice_of_a_stack_reads_and_writes_one_layer(found: dict[str, Move]) -> None:
    kernel = found["kernel"]
    assert (kernel.kind, kernel.runs, kernel.bytes) == ("slice of a stack", 3, 2 * 64 * 32 * 2 + 4)
    assert kernel.total_s == pytest.approx(3 * kernel.bytes / BANDWIDTH)


def test_library_calls_have_no_scratch_bytes(found: dict[str, Move]) -> None:
    """Scratch buffers of library calls are not counted."""
    dot, fast, attended, convolution = (found[name] for name in ("dot", "fast", "attended", "seen"))
    assert (dot.kind, dot.runs, dot.flops) == ("product", 3, 2 * 8 * 64 * 32)
    assert dot.bytes == 8 * 64 * 2 + 64 * 32 * 2 + 8 * 32 * 4
    assert (fast.kind, fast.flops, fast.rate) == ("product", 2 * 16 * 128 * 32, 2 * dot.rate)
    assert (attended.kind, attended.flops) == ("attention", 4 * 2 * 16 * 24 * 64)
    assert (convolution.kind, convolution.flops) == ("convolution", 2 * 36 * 8 * 9 * 4)


def test_the_rest(found: dict[str, Move]) -> None:
    assert (found["turned"].kind, found["turned"].bytes) == ("copy", 2 * 8 * 32 * 4)
    assert (found["out"].kind, found["out"].bytes) == ("elementwise", 2 * 8 * 32 * 4 + 32 * 4)


def test_sums(found: dict[str, Move]) -> None:
    sums = by_kind(found.values())
    assert sums["product"].runs == 4
    assert sums["product"].flops == 3 * found["dot"].flops + found["fast"].flops
    lines = table(list(found.values()), longest=1).splitlines()
    assert len(lines) == len(sums) + 2
