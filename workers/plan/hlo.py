"""Parser of a compiled program's HLO text: collectives and bytes, weighted by loop trip counts.

The compiler's `cost_analysis` counts a loop's body once, and ignores communication.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

ITEM_BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8,
}  # fmt: skip
KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")

_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_ARRAY = re.compile(r"\b(?P<type>[a-z]+\d*)\[(?P<shape>[\d,]*)\]")
_COLLECTIVE = re.compile(rf" = (?P<type>.*?) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\(")
_WHILE = re.compile(r" while\(.*condition=%?(?P<condition>[\w.\-]+), body=%?(?P<body>[\w.\-]+)")
_CALLED = re.compile(
    r"(?:calls|to_apply|called_computations|(?:true|false)_computation)=\{?%?(?P<name>[\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{(?P<names>[^}]*)\}")
_TRIPS = re.compile(r'"?known_trip_count"?:\{"n":"(?P<n>\d+)"\}')
_LIMIT = re.compile(r" = [su]32\[\]\S* constant\((?P<n>\d+)\)")
_CYCLES = re.compile(r'"estimated_cycles":"(?P<n>\d+)"')
_GROUPS = re.compile(r"replica_groups=\{\{(?P<first>[\d,]*)\}")
_GRID = re.compile(
    r"replica_groups=\[(?P<groups>\d+),(?P<size>\d+)\]<=\[(?P<dims>[\d,]+)\]"
    r"(?:T\((?P<order>[\d,]+)\))?"
)
_MESH = re.compile(r"replica_groups=mesh\[(?P<axes>[^\]]*)\][^{]*\{(?P<over>[^}]*)\}")
_AXIS = re.compile(r"'(?P<name>[^']+)'=(?P<size>\d+)")
_OVER = re.compile(r"'(?P<name>[^']+)'(?::\((?P<before>\d+)\)(?P<size>\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>(?:\{\d+,\d+\},?)*)\}")


@dataclass(frozen=True)
class Collective:
    """Kind and size of a collective operation in a compiled program."""

    kind: str
    sent_bytes: float
    """Bytes sent by one device, per run."""
    crosses: bool
    """Whether it crosses slices."""


@dataclass(frozen=True)
class Reading:
    """Collectives of one compiled program, each with its number of runs."""

    collectives: Counter[Collective]
    cycles: int
    """The compiler's estimate of cycles, which only TPU programs have."""


def read(text: str, slices: Sequence[int]) -> Reading:
    """Read the collectives of compiled HLO text; count those in loops by their trips.

    Args:
        text: `Compiled.as_text()`.
        slices: slice or host of each device, in the order of the mesh.
    """
    lines_of = computations(text)
    counts: Counter[Collective] = Counter()
    total = 0
    for name, count in times(lines_of).items():
        for collective in collectives(lines_of[name], slices):
            counts[collective] += count
        total += count * sum(map(cycles, lines_of[name]))
    return Reading(counts, total)


def collectives(lines: Iterable[str], slices: Sequence[int] | None = None) -> Iterator[Collective]:
    """Yield the collectives of one HLO computation.

    Args:
        slices: as `read`; None: all devices are in one slice.
    """
    for line in lines:
        collective = _collective(line, slices)
        if collective is not None:
            yield collective


def cycles(line: str) -> int:
    """Return the compiler's estimate of an HLO operation's cycles, or 0."""
    return sum(int(n) for n in _CYCLES.findall(line))


ENTRY = "ENTRY"


def computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each HLO computation by name; the entry's name is ENTRY."""
    return dict(_computations(text))


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    name = ""
    lines: list[str] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            name, lines = ENTRY if head["entry"] else head["name"], []
        elif line.startswith("}"):
            yield name, lines
        else:
            lines.append(line)


def times(computations: dict[str, list[str]]) -> Counter[str]:
    """Count how often each computation of an HLO program runs."""
    counts: Counter[str] = Counter()

    def visit(name: str, count: int) -> None:
        counts[name] += count
        for line in computations[name]:
            loop = _WHILE.search(line)
            if loop:
                visit(loop["body"], count * _trips(line, computations[loop["condition"]]))
                continue
            for inner in _called(line):
                if inner in computations:
                    visit(inner, count)

    visit(ENTRY, 1)
    return counts


def _called(line: str) -> list[str]:
    """Return the HLO computations that an operation calls, except loops."""
    branches = _BRANCHES.search(line)
    of_branches = branches["names"].split(",") if branches else []
    return [*_CALLED.findall(line), *(part.strip(" %") for part in of_branches)]


def outermost(computations: dict[str, list[str]]) -> dict[str, str]:
    """Return each HLO computation's outermost loop body, or ENTRY."""
    callers: dict[str, str] = {}
    bodies = set()
    for name, lines in computations.items():
        for line in lines:
            loop = _WHILE.search(line)
            if loop:
                bodies.add(loop["body"])
            for inner in [loop["body"]] if loop else _called(line):
                callers.setdefault(inner, name)

    def out(name: str) -> str:
        outer = out(callers[name]) if name in callers else ENTRY
        return name if outer == ENTRY and name in bodies else outer

    return {name: out(name) for name in computations}


def _trips(line: str, condition: list[str]) -> int:
    """Return the trip count of an HLO loop over a range; 1 if unknown."""
    trip_count = _TRIPS.search(line)
    if trip_count:
        return int(trip_count["n"])
    limits = [int(n) for text in condition for n in _LIMIT.findall(text)]
    return max(limits, default=1)


def _collective(line: str, slices: Sequence[int] | None) -> Collective | None:
    match = _COLLECTIVE.search(line)
    if match is None:
        return None
    sizes = [_array_bytes(array) for array in _ARRAY.finditer(match["type"])]
    if match["start"] and len(sizes) > 1:  # inputs, results and flags
        sizes = [size for size in sizes if size > 4]
        sizes = sizes[len(sizes) // 2 :]
    group = _group(line)
    sent = _sent(match["kind"], sum(sizes), max(len(group), 1))
    crosses = slices is not None and _crosses(line, slices)
    return Collective(match["kind"], sent, crosses)


def _crosses(line: str, slices: Sequence[int]) -> bool:
    """Return whether a collective's first group, or any pair of a permute, spans several slices."""
    pairs = _PAIRS.search(line)
    pairs_text = re.findall(r"\d+,\d+", pairs["pairs"]) if pairs else []
    groups = [_numbers(pair) for pair in pairs_text] or [_group(line)]
    return any(len({slices[device] for device in group}) > 1 for group in groups)


def _array_bytes(array: re.Match[str]) -> int:
    shape = [int(size) for size in array["shape"].split(",") if size]
    return math.prod(shape) * ITEM_BYTES.get(array["type"], 0)


def _sent(kind: str, result: float, count: int) -> float:
    """Return the bytes that one device sends in a collective of `count` devices."""
    others = (count - 1) / count
    factors = {
        "all-gather": others,
        "all-reduce": 2 * others,
        "all-to-all": others,
        "reduce-scatter": count - 1,
        "collective-permute": 1,
    }
    return result * factors[kind]


def _group(line: str) -> tuple[int, ...]:
    """Return a collective's first group of devices; empty for a permute."""
    listed = _GROUPS.search(line)
    if listed:
        return _numbers(listed["first"])
    grid = _GRID.search(line)
    if grid:
        return _of_grid(grid)
    mesh = _MESH.search(line)
    if mesh:
        return _of_mesh(mesh)
    return ()


def _of_grid(grid: re.Match[str]) -> tuple[int, ...]:
    """Expand HLO's `[2,4]<=[4,2]T(1,0)`: device numbers in a grid, transposed, cut into rows."""
    dims = _numbers(grid["dims"])
    order = _numbers(grid["order"]) if grid["order"] else tuple(range(len(dims)))
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    numbers = []
    for position in range(int(grid["size"])):
        number, rest = 0, position
        for axis in reversed(order):
            number += rest % dims[axis] * strides[axis]
            rest //= dims[axis]
        numbers.append(number)
    return tuple(numbers)


def _of_mesh(mesh: re.Match[str]) -> tuple[int, ...]:
    """Expand HLO's `mesh['a'=4,'b'=2] {'a'}`: devices that differ only along these axes or parts.

    A part `'a':(2)2` selects 2 positions of the axis, after a major part of 2.
    """
    sizes = {axis["name"]: int(axis["size"]) for axis in _AXIS.finditer(mesh["axes"])}
    names = list(sizes)
    numbers: tuple[int, ...] = (0,)
    for axis in _OVER.finditer(mesh["over"]):
        inner = math.prod(sizes[name] for name in names[names.index(axis["name"]) + 1 :])
        size = int(axis["size"] or sizes[axis["name"]])
        stride = inner * sizes[axis["name"]] // (int(axis["before"] or 1) * size)
        numbers = tuple(number + step * stride for number in numbers for step in range(size))
    return numbers


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
