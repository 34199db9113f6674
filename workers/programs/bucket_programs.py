"""Programs of one bucket, compiled or still compiling."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from models.interface.pipeline import Step
from models.interface.step_program import StepProgram
from workers.programs.compilation import Compilation
from workers.programs.step_latency import BatchLayout, Recent, StepTimes

T = TypeVar("T")

Program = Callable[..., Any]
Compiling = Future[Program]
Values = Mapping[str, np.ndarray | np.float32]
"""Values of one step of one row, by name."""


@dataclass(eq=False)
class Phase:
    """Kind of step of one bucket, or of several sizes of one bucket of tokens.

    Rows of one phase may share a batch.
    """

    program: StepProgram
    expert: str | None = None
    """The swapped network that has to be on the device; None: all that it needs always is."""
    programs: dict[BatchLayout, Compiling] = field(default_factory=dict)
    """Programs by batch layout: (weights, rows, values [batch, …]) → (rows, finite [batch]).

    With conditions there are two arguments more: those of each row, and which of them its step is
    to have, int32 [batch].
    """
    conditions: Future[Program | None] = field(default_factory=lambda: finished(None))
    """(weights, row, values [steps, …]) → conditions [steps, …] (conditioning.py); of
    None: the family has none."""
    changes: frozenset[str] = frozenset()
    """Leaves of a row that its steps change; known when the first program is."""
    flops: Future[float] | None = None
    """Operations of one row's step; None: nobody has asked for them."""
    times: StepTimes = field(default_factory=StepTimes)
    limits: dict[int, int] = field(default_factory=dict)
    """Largest batch by parts: larger ones ran out of memory and are not tried again."""
    made_by: Compilation | None = None
    """Compilation that its necessary programs belong to."""
    bucket: str = ""
    """Step bucket of images of several sizes; empty: those of one bucket have it alone."""

    @property
    def batch_layouts(self) -> list[BatchLayout]:
        """Batch layouts that can run now, ascending."""
        return [
            batch_layout
            for batch_layout, program in sorted(self.programs.items())
            if is_ready(program)
            and batch_layout.size <= self.limits.get(batch_layout.parts, batch_layout.size)
        ]

    @property
    def smallest(self) -> BatchLayout:
        """The fewest rows that it is compiled for."""
        return min(self.programs)

    @property
    def is_broken(self) -> bool:
        """Return whether what its rows need did not compile, or was dropped."""
        return not self.programs or any(
            program.cancelled() or failed(program) for program in self.necessary
        )

    @property
    def necessary(self) -> list[Future[Any]]:
        """Programs that any row of this phase needs."""
        return [self.conditions, self.programs[self.smallest]]

    def shrink(self, batch_layout: BatchLayout) -> None:
        """Use smaller batches of this layout from now on: this one does not fit."""
        sizes = [other.size for other in self.programs if other.parts == batch_layout.parts]
        least = self.smallest.size if batch_layout.parts == self.smallest.parts else 0
        smaller = max((size for size in sizes if size < batch_layout.size), default=least)
        self.limits[batch_layout.parts] = min(smaller, self.limits.get(batch_layout.parts, smaller))


@dataclass(frozen=True, eq=False)
class Asked:
    """Needs of one image: its encoder and phases."""

    encoder: Hashable
    phases: frozenset[StepProgram]


@dataclass(eq=False)
class BucketPrograms:
    """Programs that images of one bucket run."""

    bucket: str
    row: Future[Any] = field(init=False)
    """Abstract row: a pytree of abstract arrays."""
    encoders: dict[Hashable, Compiling] = field(default_factory=dict)
    """Encoders by the inputs' names and shapes: (weights, inputs) → row."""
    phases: dict[StepProgram, Phase] = field(default_factory=dict)
    decode: Compiling = field(init=False)
    """(weights, row) → `Shown`: pixels, uint8 [height, width, 3], of a video [frames, height,
    width, 3]; or a `Clip` of these with their sound."""
    preview: Compiling = field(init=False)
    """(weights, row) → `Shown`: a smaller image or video of the same kind."""
    compilation: Compilation = field(default_factory=Compilation)
    """Compilation of what an image has lacked last."""
    made_by: dict[Future[Any], Compilation] = field(default_factory=dict)
    """Compilation that each program belongs to."""
    awaited: list[Asked] = field(default_factory=list)
    """Needs of each image that waits."""
    encode_times: Recent = field(default_factory=Recent)
    decode_times: Recent = field(default_factory=Recent)

    @property
    def untried(self) -> list[int]:
        """Batch sizes of which some layout of some phase has not had its trials, ascending."""
        return sorted(
            {
                batch_layout.size
                for phase in self.phases.values()
                for batch_layout in set(phase.batch_layouts) - phase.times.known().keys()
            }
        )

    @property
    def around_s(self) -> float:
        """Median seconds of an image's encoding and decoding, undisturbed; 0 where never done."""
        return (self.encode_times.median or 0.0) + (self.decode_times.median or 0.0)

    def changes(self, steps: Iterable[Step]) -> frozenset[str]:
        """Leaves of a row that any of these steps changes."""
        return frozenset().union(*(self.phases[step.phase].changes for step in steps))

    @property
    def is_broken(self) -> bool:
        """True if what any of its images needs did not compile. Another try may: start over."""
        return bool(self.encoders) and any(failed(program) for program in self.necessary())

    def to_begin(self, encoder: Hashable, phases: Iterable[StepProgram]) -> list[Future[Any]]:
        """Return the programs that an image cannot begin without; other batch sizes may follow."""
        chosen = [self.phases[name] for name in phases]
        return [self.encoders[encoder], *(one for phase in chosen for one in phase.necessary)]

    def necessary(self) -> list[Future[Any]]:
        """Return all programs that any image of this bucket may need."""
        of_steps = [one for phase in self.phases.values() for one in phase.necessary]
        return [*self.encoders.values(), *of_steps, self.decode, self.preview]

    def optional(self) -> list[Compiling]:
        """Larger batches and other layouts: without them it only takes longer."""
        return [
            program
            for phase in self.phases.values()
            for batch_layout, program in phase.programs.items()
            if batch_layout != phase.smallest
        ]


def finished(result: T) -> Future[T]:
    """Return a finished future, which nobody has to wait for."""
    future: Future[T] = Future()
    future.set_result(result)
    return future


def is_ready(program: Future[Any]) -> bool:
    """Return whether the program is compiled."""
    return program.done() and not program.cancelled() and program.exception() is None


def failed(program: Future[Any]) -> bool:
    """Return whether compiling the program failed."""
    return program.done() and not program.cancelled() and program.exception() is not None
