"""Counts computation and memory traffic of a GPU program's operations in its compiled text,
including loops.

An operation reads its operands and writes its results once each; of an operand that it only slices,
it reads the slice. Cache hits and repeated reads are not counted. The card's bandwidth gives a
lower bound of an operation's time, and its peak rate one of products.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from workers.plan import hlo

Kind = Literal["product", "attention", "convolution", "slice of a stack", "copy", "elementwise"]

BANDWIDTH = 4.8e12
"""Bytes per second. Source: NVIDIA's H200 data sheet."""
RATES = {"f8": 1979e12, "bf16": 989.5e12, "f16": 989.5e12, "f32": 494.7e12}
"""Operations per second of a product by operand type; float32 in TF32. Source: the same."""
SIZES = {**hlo.ITEM_BYTES, "f8e4m3fn": 1, "f8e5m2": 1}
FREE = frozenset(
    {"bitcast", "constant", "get-tuple-element", "iota", "parameter", "tuple", "while"}
    | {"after-all", "partition-id", "replica-id"}
)
MOVES = FREE | {
    "broadcast", "concatenate", "convert", "copy", "dynamic-slice", "dynamic-update-slice", "pad",
    "reshape", "slice", "transpose",
}  # fmt: skip
CUTS = frozenset({"dynamic-slice", "slice"})
SCRATCH = ("s8", "u8")
"""Types of the scratch buffers that library calls return with their results."""

_LINE = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>.*?) (?P<code>[\w\-]+)\((?P<operands>[^)]*)\)"
)
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]+)')
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")


@dataclass(frozen=True)
class Array:
    kind: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * SIZES.get(self.kind, 0)


@dataclass(frozen=True)
class Line:
    """An operation of the compiled text."""

    name: str
    code: str
    made: tuple[Array, ...]
    operands: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Move:
    """An operation that takes time; `total_s` covers all its runs."""

    name: str
    kind: Kind
    bytes: int
    flops: float
    rate: float
    """Peak operations per second of its products."""
    runs: int

    @property
    def total_s(self) -> float:
        """Minimum seconds of all runs."""
        return self.runs * max(self.bytes / BANDWIDTH, self.flops / self.rate)


@dataclass
class Sum:
    """Totals of one kind over a program."""

    runs: int = 0
    bytes: float = 0
    flops: float = 0
    seconds: float = 0


def by_kind(moves: Iterable[Move]) -> dict[Kind, Sum]:
    totals: dict[Kind, Sum] = defaultdict(Sum)
    for move in moves:
        total = totals[move.kind]
        total.runs += move.runs
        total.bytes += move.runs * move.bytes
        total.flops += move.runs * move.flops
        total.seconds += move.total_s
    return dict(totals)


def table(moves: Sequence[Move], longest: int = 0) -> str:
    """Minimum times by kind, and of the longest operations."""
    rows = [
        f"  {kind}: {total.runs} runs, {total.bytes / 1e9:.2f} GB, {total.flops / 1e12:.2f} TFLOP,"
        f" {1e3 * total.seconds:.2f} ms"
        for kind, total in by_kind(moves).items()
    ]
    rows += [f"  at the least {1e3 * sum(move.total_s for move in moves):.2f} ms"]
    rows += [
        f"    {move.name} ({move.kind}) x {move.runs}: {move.bytes / 1e6:.1f} MB,"
        f" {1e3 * move.total_s:.3f} ms"
        for move in sorted(moves, key=lambda move: -move.total_s)[:longest]
    ]
    return "\n".join(rows)


def moves(text: str) -> Iterator[Move]:
    """Yield a program's operations in the order of its text.

    Args:
        text: `Compiled.as_text()` for a GPU.
    """
    computations = hlo.computations(text)
    lines = {name: list(map(_line, rows)) for name, rows in computations.items()}
    parsed = {name: [line for line in lines_of if line] for name, lines_of in lines.items()}
    fused = {name for row in parsed.values() for line in row for name in _CALLS.findall(line.text)}
    for name, runs in hlo.times(computations).items():
        if name in fused or not runs:
            continue
        by_name = {line.name: line for line in parsed[name]}
        for line in parsed[name]:
            if line.code not in FREE and sum(array.size for array in line.made) > 1:
                yield _move(line, by_name, parsed, runs)


def _move(
    line: Line, made: Mapping[str, Line], parsed: Mapping[str, list[Line]], runs: int
) -> Move:
    called = _CALLS.search(line.text)
    inner = parsed.get(called[1], []) if called else []
    operands = _made(line, made)
    written = sum(array.bytes for array in line.made if array.kind not in SCRATCH)
    read = sum(
        _cut(inner, number, sum(array.bytes for array in arrays))
        for number, arrays in enumerate(operands)
    )
    flops, rate = _flops(line, operands), _rate(operands)
    inner_by_name = {inner_line.name: inner_line for inner_line in inner}
    for inner_line in inner:
        inner_operands = _made(inner_line, inner_by_name)
        if inner_flops := _flops(inner_line, inner_operands):
            flops, rate = flops + inner_flops, _rate(inner_operands)
    return Move(line.name, _kind(line, inner), read + written, flops, rate, runs)


def _made(line: Line, by_name: Mapping[str, Line]) -> list[tuple[Array, ...]]:
    """Results of a line's operands."""
    return [by_name[name].made for name in line.operands if name in by_name]


def _rate(operands: list[tuple[Array, ...]]) -> float:
    """Peak rate of products with these operands."""
    kind = operands[0][0].kind if operands and operands[0] else ""
    return RATES.get("f8" if kind.startswith("f8") else kind, RATES["bf16"])


def _cut(inner: list[Line], number: int, whole: int) -> int:
    """Bytes that a fusion reads of an operand with `whole` bytes."""
    names = {
        line.name
        for line in inner
        if line.code == "parameter" and f"parameter({number})" in line.text
    }
    names |= {line.name for line in inner if line.code == "bitcast" and names & {*line.operands}}
    users = [line for line in inner if names & {*line.operands} and line.name not in names]
    if not users or any(user.code not in CUTS or user.operands[0] not in names for user in users):
        return whole
    return min(whole, sum(array.bytes for user in users for array in user.made))


def _kind(line: Line, inner: list[Line]) -> Kind:
    target = _TARGET.search(line.text)
    codes = {line.code, *(inner_line.code for inner_line in inner)}
    if target and "fmha" in target[1]:
        return "attention"
    if (target and "conv" in target[1]) or "convolution" in codes:
        return "convolution"
    if (target and "matmul" in target[1]) or "dot" in codes:
        return "product"
    if codes - FREE <= CUTS | {"copy", "fusion"} and "dynamic-slice" in codes:
        return "slice of a stack"
    return "copy" if codes <= MOVES | {"fusion"} else "elementwise"


def _flops(line: Line, operands: list[tuple[Array, ...]]) -> float:
    target = _TARGET.search(line.text)
    if line.code == "dot" or (target and "matmul" in target[1]):
        contracted = _CONTRACTED.search(line.text)
        axes = re.findall(r"\d+", contracted[1]) if contracted else []
        return 2 * line.made[0].size * math.prod(operands[0][0].shape[int(axis)] for axis in axes)
    if target and "fmha" in target[1]:
        return 4 * operands[0][0].size * operands[1][0].shape[1]
    if line.code == "convolution" or (target and "conv" in target[1]):
        labels = _LABELS.search(line.text)
        if labels and len(operands) > 1:
            kernel = operands[1][0]
            return 2 * line.made[0].size * kernel.size / kernel.shape[labels[1].index("o")]
    return 0


def _line(text: str) -> Line | None:
    match = _LINE.match(text)
    if match is None:
        return None
    arrays = tuple(
        Array(kind, tuple(int(size) for size in shape.split(",") if size))
        for kind, shape in _ARRAY.findall(match["type"])
    )
    operands = tuple(re.findall(r"%([\w.\-]+)", match["operands"]))
    return Line(match["name"], match["code"], arrays, operands, text)
