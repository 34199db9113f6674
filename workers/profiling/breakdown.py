"""Breakdown of steps' time: intervals of a device's operations → shares of a window.

A moment counts once. Where a step's program computes it is compute, whatever is communicated
meanwhile; where it only communicates it is communication; where neither runs, another program may;
else the device waits. So the parts sum to the window.
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
"""Intervals in order and without overlap, where it is not said otherwise."""

TOP = 12
"""Operations that a report names."""


class Kind(StrEnum):
    """Kind of work that a device is busy with."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    OTHER = "other"
    """Work of another program than a step's: encoding, decoding, previews, copies."""
    FRAME = "frame"
    """A loop or call around other operations: it computes where none of them communicates."""


COLLECTIVE = re.compile(
    r"all[-_ ]?gather|all[-_ ]?reduce|all[-_ ]?to[-_ ]?all|reduce[-_ ]?scatter|collective"
    r"|nccl|rccl|(^|[^a-z])(send|recv)([^a-z]|$)",
    re.IGNORECASE,
)
FRAMES = re.compile(r"%?(while|call|conditional)(\.\d+)?( =.*)?")
STEP_PROGRAM = re.compile(r"jit_step\b")
"""Name that XLA gives a step's program (`Tracer.step`)."""


def kind_of(name: str, program: str | None, category: str = "") -> Kind:
    """Return the kind of one operation.

    Args:
        program: that it is part of; None: nothing tells, which counts as a step's.
        category: as the profiler of a TPU has it.
    """
    if program is not None and not STEP_PROGRAM.match(program):
        return Kind.OTHER
    head = name.split(" = ")[0]  # a TPU's names have the whole instruction behind them
    if COLLECTIVE.search(head) or COLLECTIVE.search(category):
        return Kind.COMMUNICATION
    return Kind.FRAME if FRAMES.fullmatch(name) else Kind.COMPUTE


@dataclass(frozen=True, slots=True)
class ProfiledOp:
    """Run of one operation on one device. Times in seconds of the recording."""

    name: str
    kind: Kind
    start: float
    end: float


@dataclass(frozen=True)
class Recording:
    """Recording of one process."""

    devices: Mapping[str, Sequence[ProfiledOp]]
    steps: Sequence[float]
    """Times at which the end of a step was seen."""
    no_work: Intervals
    """Intervals in which there was nothing to step; in any order."""


@dataclass(frozen=True)
class Top:
    """Operation among those that take longest."""

    name: str
    kind: Kind
    seconds: float
    """Mean over the devices; others may have run meanwhile."""
    calls: float


@dataclass(frozen=True)
class Report:
    """Seconds are means over the devices; the five parts sum to the window."""

    devices: int
    steps: int
    window_s: float
    compute_s: float
    communication_s: float
    other_s: float
    waiting_s: float
    """Seconds of waiting for the host, with something to step."""
    no_work_s: float
    hidden_s: float
    """Communication behind compute, which counts as that."""
    top: tuple[Top, ...]

    @property
    def communication_share(self) -> float:
        """Share of communication in the time with something to do."""
        return self.communication_s / max(self.window_s - self.no_work_s, 1e-12)


def report(recording: Recording, most_steps: int) -> Report | None:
    """Report from the end of one step to that of the last; None: there are not two.

    Args:
        most_steps: later ones are left out.
    """
    ends = sorted(recording.steps)[: most_steps + 1]
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
    """Split the time of one device as `Report` does: the five parts, and what is hidden."""
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
    longest = sorted(seconds, key=lambda one: -seconds[one])[:TOP]
    count = len(devices)
    return tuple(Top(*one, seconds[one] / count, calls[one] / count) for one in longest)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments, in order and without overlap."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def clipped(intervals: Intervals, window: Interval) -> list[Interval]:
    """Return the intervals' parts inside the window."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in cut if start < end]


def minus(intervals: Intervals, others: Intervals) -> list[Interval]:
    """The moments of the first that are none of the second."""
    found: list[Interval] = []
    position = 0
    for start, end in intervals:
        while position < len(others) and others[position][1] <= start:
            position += 1
        edges = [start]
        for other in range(position, len(others)):
            if others[other][0] >= end:
                break
            edges += others[other]
        found += _gaps([*edges, end])
    return found


def _gaps(edges: Sequence[float]) -> list[Interval]:
    """Args: edges: begin, then begin and end of each hole, then end."""
    pairs = [pair for number, pair in enumerate(pairwise(edges)) if number % 2 == 0]
    return [(start, end) for start, end in pairs if start < end]


def total(intervals: Intervals) -> float:
    """Return the sum of disjoint intervals."""
    return sum(end - start for start, end in intervals)
