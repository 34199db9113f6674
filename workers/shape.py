"""A shape: the compiled programs of one bucket, some of them perhaps not ready yet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workers.step_times import StepTimes

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
    programs: dict[int, Compiling] = field(default_factory=dict)
    """By batch size: (weights, rows, values [batch, …]) → (rows, finite [batch])."""
    times: StepTimes = field(default_factory=StepTimes)
    limit: int | None = None
    """Larger batches ran out of memory and are not tried again."""

    @property
    def sizes(self) -> list[int]:
        """Batch sizes that can run now, ascending."""
        return [
            size
            for size, program in sorted(self.programs.items())
            if is_ready(program) and (self.limit is None or size <= self.limit)
        ]

    @property
    def smallest(self) -> int:
        return min(self.programs)

    def shrink(self, size: int) -> None:
        """A batch of this size does not fit: use smaller ones from now on."""
        smaller = max((other for other in self.programs if other < size), default=self.smallest)
        self.limit = smaller if self.limit is None else min(smaller, self.limit)


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
        """Batches of more than the smallest size: without them it only takes longer."""
        return [
            program
            for phase in self.phases.values()
            for size, program in phase.programs.items()
            if size > phase.smallest
        ]


def is_ready(program: Compiling) -> bool:
    return program.done() and program.exception() is None


def failed(program: Compiling) -> bool:
    return program.done() and program.exception() is not None
