"""Breakdown of steps' time: from intervals of a device's operations to shares of a window.

Each moment counts once, as the first that applies. Compute: a step's program computes.
Communication: it only communicates. Other: another program runs. Otherwise the device waits. So the
parts sum to the window.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

Interval = tuple[float, float]
Intervals = Sequence[Interval]
"""Intervals, sorted and disjoint unless stated otherwise."""

TOP = 12
"""Number of operations in a report."""


class Kind(StrEnum):
    """Kind of an operation in a device profile."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    OTHER = "other"
    """Program other than a step: encoding, decoding, previews, copies."""
    FRAME = "frame"
    """A loop or call around other operations; computes except while an inner one communicates."""


COLLECTIVE = re.compile(
    r"all[-_ ]?gather|all[-_ ]?reduce|all[-_ ]?to[-_ ]?all|reduce[-_ ]?scatter|collective"
    r"|nccl|rccl|(^|[^a-z])(send|recv)([^a-z]|$)",
    re.IGNORECASE,
)
FRAMES = re.compile(r"%?(while|call|conditional)(\.\d+)?( =.*)?")
STEP_PROGRAM = re.compile(r"jit_step\b")
"""XLA's name of a step's program (`Tracer.step`)."""


def kind_of(name: str, program: str | None, category: str = "") -> Kind:
    """Return the kind of one operation in a device profile.

    Args:
        program: its program; None: unknown, which counts as a step.
        category: category by the TPU's profiler.
    """
    if program is not None and not STEP_PROGRAM.match(program):
        return Kind.OTHER
    head = name.split(" = ")[0]  # TPU names are followed by the whole instruction
    if COLLECTIVE.search(head) or COLLECTIVE.search(category):
        return Kind.COMMUNICATION
    return Kind.FRAME if FRAMES.fullmatch(name) else Kind.COMPUTE


@dataclass(frozen=True, slots=True)
class ProfiledOp:
    """Run of one profiled operation on one device. Times in seconds of the recording."""

    name: str
    kind: Kind
    start: float
    end: float


@dataclass(frozen=True)
class Recording:
    """Recorded device profile of one process: operations per device, step ends, idle times."""

    devices: Mapping[str, Sequence[ProfiledOp]]
    steps: Sequence[float]
    """End times of steps."""
    no_work: Intervals
    """Intervals without work to step; unsorted."""


@dataclass(frozen=True)
class Top:
    """Operation among the longest of a device profile."""

    name: str
    kind: Kind
    seconds: float
    """Mean over the devices; may overlap other operations."""
    calls: float


@dataclass(frozen=True)
class Report:
    """Breakdown of a profile's window, averaged over devices; the five parts sum to the window."""

    devices: int
    steps: int
    window_s: float
    compute_s: float
    communication_s: float
    other_s: float
    waiting_s: float
    """Seconds of waiting for the host while there is work."""
    no_work_s: float
    hidden_s: float
    """Communication during compute, which counts as compute."""
    top: tuple[Top, ...]

    @property
    def communication_share(self) -> float:
        """Share of communication in the profiled time with work."""
        return self.communication_s / max(self.window_s - self.no_work_s, 1e-12)


def report(recording: Recording, max_steps: int) -> Report | None:
    """Break down a profile from the first step's end to the last's; None: fewer than two steps.

    Args:
        max_steps: maximum number of steps; later ones are ignored.
    """
    ends = sorted(recording.steps)[: max_steps + 1]
    if len(ends) < 2 or not recording.devices:
        return None
    window = (ends[0], ends[-1])
    idle = clipped(merged(recording.no_work), window)
    parts = [_parts(ops, window, idle) for ops in recording.devices.values()]
    mean = [sum(column) / len(parts) for column in zip(*parts, strict=True)]
    compute, communication, other, waiting, no_work, hidden = mean
    return Report(
        devices=len(parts),
        steps=len(ends) - 1,
        window_s=window[1] - window[0],
        compute_s=compute,
        communication_s=communication,
        other_s=other,
        waiting_s=waiting,
        no_work_s=no_work,
        hidden_s=hidden,
        top=_top(recording.devices.values(), window),
    )


def _parts(ops: Iterable[ProfiledOp], window: Interval, idle: Intervals) -> tuple[float, ...]:
    """Return the five parts of one device's profiled time, and the hidden communication."""
    of: defaultdict[Kind, list[Interval]] = defaultdict(list)
    for op in ops:
        of[op.kind].append((op.start, op.end))
    runs = {kind: clipped(merged(of[kind]), window) for kind in Kind}
    talk = runs[Kind.COMMUNICATION]
    compute = merged([*runs[Kind.COMPUTE], *minus(runs[Kind.FRAME], talk)])
    shown = minus(talk, compute)
    step = merged([*compute, *shown])
    other = minus(runs[Kind.OTHER], step)
    free = minus([window], merged([*step, *other]))
    late = minus(free, idle)
    hidden = total(talk) - total(shown)
    return (
        total(compute),
        total(shown),
        total(other),
        total(late),
        total(free) - total(late),
        hidden,
    )


def _top(devices: Iterable[Sequence[ProfiledOp]], window: Interval) -> tuple[Top, ...]:
    devices = list(devices)
    seconds: defaultdict[tuple[str, Kind], float] = defaultdict(float)
    calls: defaultdict[tuple[str, Kind], int] = defaultdict(int)
    for op in (op for ops in devices for op in ops):
        took_s = min(op.end, window[1]) - max(op.start, window[0])
        if took_s > 0 and op.kind is not Kind.FRAME:
            seconds[op.name, op.kind] += took_s
            calls[op.name, op.kind] += 1
    longest = sorted(seconds, key=lambda key: -seconds[key])[:TOP]
    count = len(devices)
    return tuple(Top(*key, seconds[key] / count, calls[key] / count) for key in longest)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Sort time intervals and merge overlaps."""
    result: list[Interval] = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def clipped(intervals: Intervals, window: Interval) -> list[Interval]:
    """Return the parts of intervals of time inside a window."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in cut if start < end]


def minus(intervals: Intervals, others: Intervals) -> list[Interval]:
    """Subtract the second list of intervals of time from the first."""
    result: list[Interval] = []
    position = 0
    for start, end in intervals:
        while position < len(others) and others[position][1] <= start:
            position += 1
        edges = [start]
        for other in range(position, len(others)):
            if others[other][0] >= end:
                break
            edges += others[other]
        result += _gaps([*edges, end])
    return result


def _gaps(edges: Sequence[float]) -> list[Interval]:
    """Return the time intervals between holes.

    Args:
        edges: start, then start and end of each hole, then end.
    """
    pairs = [pair for number, pair in enumerate(pairwise(edges)) if number % 2 == 0]
    return [(start, end) for start, end in pairs if start < end]


def total(intervals: Intervals) -> float:
    """Return the total length of disjoint time intervals."""
    return sum(end - start for start, end in intervals)
