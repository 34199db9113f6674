"""A shape: the compiled programs of one bucket, some of them perhaps not ready yet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.nn.step_cache import KEPT
from models.pipeline import Step
from workers.step_times import Recent, StepTimes, Way

UNKEPT = f"['{KEPT}']"
"""What the names of a row's leaves begin with that snapshots do without."""

Program = Callable[..., Any]
Compiling = Future[Program]
Values = Mapping[str, np.ndarray | np.float32]
"""Of one step of one row, by name."""


@dataclass(eq=False)
class Phase:
    """One kind of step of one bucket. Rows of equal phase may share a batch."""

    name: str
    expert: str | None = None
    """The swapped network that has to be on the device; None: all that it needs always is."""
    programs: dict[Way, Compiling] = field(default_factory=dict)
    """By the way it is done: (weights, rows, values [batch, …]) → (rows, finite [batch])."""
    changes: frozenset[str] = frozenset()
    """Leaves of a row that its steps change; known when the first program is."""
    flops: Future[float] | None = None
    """Operations of one row's step; None: nobody has asked for them."""
    times: StepTimes = field(default_factory=StepTimes)
    limits: dict[int, int] = field(default_factory=dict)
    """By parts: larger batches ran out of memory and are not tried again."""

    @property
    def ways(self) -> list[Way]:
        """What can run now, ascending."""
        return [
            way
            for way, program in sorted(self.programs.items())
            if is_ready(program) and way.size <= self.limits.get(way.parts, way.size)
        ]

    @property
    def smallest(self) -> Way:
        return min(self.programs)

    def shrink(self, way: Way) -> None:
        """A batch does not fit in this way: with its layout, use smaller ones from now on."""
        sizes = [other.size for other in self.programs if other.parts == way.parts]
        least = self.smallest.size if way.parts == self.smallest.parts else 0
        smaller = max((size for size in sizes if size < way.size), default=least)
        self.limits[way.parts] = min(smaller, self.limits.get(way.parts, smaller))


@dataclass(eq=False)
class Shape:
    """Everything that pictures of one bucket run."""

    bucket: str
    row: Future[Any] = field(init=False)
    """What a row looks like: a pytree of abstract arrays."""
    encoders: dict[Hashable, Compiling] = field(default_factory=dict)
    """By the inputs' names and shapes: (weights, inputs) → row."""
    phases: dict[str, Phase] = field(default_factory=dict)
    decode: Compiling = field(init=False)
    """(weights, row) → pixels, uint8 [height, width, 3]; of a clip [frames, height, width, 3]."""
    preview: Compiling = field(init=False)
    """(weights, row) → a smaller picture or clip of the same kind."""
    encode_times: Recent = field(default_factory=Recent)
    decode_times: Recent = field(default_factory=Recent)

    @property
    def is_measured(self) -> bool:
        """Every way of every phase has had its trials."""
        phases = self.phases.values()
        return all(phase.times.known().keys() >= set(phase.ways) for phase in phases)

    @property
    def around_s(self) -> float:
        """What a picture's encoding and decoding take, undisturbed; 0 where it was never done."""
        return (self.encode_times.median or 0.0) + (self.decode_times.median or 0.0)

    def changes(self, steps: Iterable[Step]) -> frozenset[str]:
        """Leaves of a row that any of these steps changes, and that a snapshot has to have: a step
        cache is as large as the network is wide, and without one the next step runs whole."""
        changed = frozenset().union(*(self.phases[step.phase].changes for step in steps))
        return frozenset(name for name in changed if not name.startswith(UNKEPT))

    @property
    def is_broken(self) -> bool:
        """What any of its pictures needs did not compile. Another try may: start over."""
        return bool(self.encoders) and any(failed(program) for program in self.necessary())

    def to_begin(self, encoder: Hashable, phases: Iterable[str]) -> list[Compiling]:
        """What a picture cannot begin without; the other batch sizes may follow."""
        chosen = [self.phases[name] for name in phases]
        return [self.encoders[encoder], *(phase.programs[phase.smallest] for phase in chosen)]

    def necessary(self) -> list[Compiling]:
        """What any picture of this shape may need."""
        smallest = [phase.programs[phase.smallest] for phase in self.phases.values()]
        return [*self.encoders.values(), *smallest, self.decode, self.preview]

    def optional(self) -> list[Compiling]:
        """Larger batches and other layouts: without them it only takes longer."""
        return [
            program
            for phase in self.phases.values()
            for way, program in phase.programs.items()
            if way != phase.smallest
        ]


def is_ready(program: Compiling) -> bool:
    return program.done() and program.exception() is None


def failed(program: Compiling) -> bool:
    return program.done() and program.exception() is not None
