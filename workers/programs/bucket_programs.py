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
class StepKind:
    """Step kind of one bucket, or of several sizes of one token bucket.

    Rows of one step kind may share a batch.
    """

    program: StepProgram
    expert: str | None = None
    """Swapped network that must be on the device; None: all needed weights always are."""
    programs: dict[BatchLayout, Compiling] = field(default_factory=dict)
    """Programs by batch layout: (weights, rows, values [batch, …]) → (rows, digests [batch]).

    With precomputed modulations, two arguments follow: each row's modulations, and the index of its
    step's, int32 [batch]."""
    modulations: Future[Program | None] = field(default_factory=lambda: finished(None))
    """Program that precomputes modulations: (weights, row, values [steps, …]) → [steps, …]
    (conditioning.py); None if the family has none."""
    changes: frozenset[str] = frozenset()
    """Leaves of a row that its steps change; set with the first program."""
    flops: Future[float] | None = None
    """FLOPs of one row's step; None: not requested yet."""
    times: StepTimes = field(default_factory=StepTimes)
    limits: dict[int, int] = field(default_factory=dict)
    """Largest batch by `parts`; larger ones ran out of memory and are not retried."""
    made_by: Compilation | None = None
    """Compilation that its required programs belong to."""
    bucket: str = ""
    """Token bucket shared by images of several sizes; empty: not shared."""

    @property
    def batch_layouts(self) -> list[BatchLayout]:
        """Compiled batch layouts that can run now, ascending."""
        return [
            batch_layout
            for batch_layout, program in sorted(self.programs.items())
            if is_ready(program)
            and batch_layout.size <= self.limits.get(batch_layout.parts, batch_layout.size)
        ]

    @property
    def smallest(self) -> BatchLayout:
        """The compiled batch layout with the fewest rows."""
        return min(self.programs)

    @property
    def is_broken(self) -> bool:
        """Return whether a required program failed to compile or was dropped."""
        return not self.programs or any(
            program.cancelled() or failed(program) for program in self.necessary
        )

    @property
    def necessary(self) -> list[Future[Any]]:
        """Programs that every row of this step kind needs."""
        return [self.modulations, self.programs[self.smallest]]

    def shrink(self, batch_layout: BatchLayout) -> None:
        """Limit a batch layout to smaller batches from now on, because it ran out of memory."""
        sizes = [other.size for other in self.programs if other.parts == batch_layout.parts]
        least = self.smallest.size if batch_layout.parts == self.smallest.parts else 0
        smaller = max((size for size in sizes if size < batch_layout.size), default=least)
        self.limits[batch_layout.parts] = min(smaller, self.limits.get(batch_layout.parts, smaller))


@dataclass(frozen=True, eq=False)
class ProgramNeeds:
    """Programs that one waiting image needs: its encoder and step kinds."""

    encoder: Hashable
    step_programs: frozenset[StepProgram]


@dataclass(eq=False)
class BucketPrograms:
    """All compiled programs that images of one bucket run."""

    bucket: str
    row: Future[Any] = field(init=False)
    """Abstract row of the bucket: a pytree of abstract arrays."""
    encoders: dict[Hashable, Compiling] = field(default_factory=dict)
    """Encoders by the inputs' names and shapes: (weights, inputs) → row. On one host, a third
    argument may be a `Recall` (prompt_part.py)."""
    step_kinds: dict[StepProgram, StepKind] = field(default_factory=dict)
    decode: Compiling = field(init=False)
    """(weights, row) → `CheckedOutput`: pixels, uint8 [height, width, 3], for a video [frames,
    height, width, 3]; or a `Clip` of pixels and sound."""
    preview: Compiling = field(init=False)
    """(weights, row) → `CheckedOutput`: a smaller image or video of the same kind."""
    compilation: Compilation = field(default_factory=Compilation)
    """Compilation of the programs that the latest image lacked."""
    made_by: dict[Future[Any], Compilation] = field(default_factory=dict)
    """Compilation that each of the bucket's programs belongs to."""
    awaited: list[ProgramNeeds] = field(default_factory=list)
    """Programs that each waiting image needs."""
    encode_times: Recent = field(default_factory=Recent)
    decode_times: Recent = field(default_factory=Recent)

    @property
    def untried(self) -> list[int]:
        """Batch sizes with a layout that has not had its trials in some step kind, ascending."""
        return sorted(
            {
                batch_layout.size
                for step_kind in self.step_kinds.values()
                for batch_layout in set(step_kind.batch_layouts) - step_kind.times.measured().keys()
            }
        )

    @property
    def encode_decode_s(self) -> float:
        """Median seconds to encode and decode an image, without other work; 0 if never measured."""
        return (self.encode_times.median or 0.0) + (self.decode_times.median or 0.0)

    def changes(self, steps: Iterable[Step]) -> frozenset[str]:
        """Return the leaves of a row that any of these steps changes."""
        return frozenset().union(*(self.step_kinds[step.program].changes for step in steps))

    @property
    def is_broken(self) -> bool:
        """True if a required program failed to compile; a new bucket may retry."""
        return bool(self.encoders) and any(failed(program) for program in self.necessary())

    def to_begin(
        self, encoder: Hashable, step_programs: Iterable[StepProgram]
    ) -> list[Future[Any]]:
        """Return the programs that an image needs before it can begin."""
        chosen = [self.step_kinds[name] for name in step_programs]
        return [
            self.encoders[encoder],
            *(program for step_kind in chosen for program in step_kind.necessary),
        ]

    def necessary(self) -> list[Future[Any]]:
        """Return all programs that any image of this bucket may need."""
        of_steps = [
            program for step_kind in self.step_kinds.values() for program in step_kind.necessary
        ]
        return [*self.encoders.values(), *of_steps, self.decode, self.preview]

    def optional(self) -> list[Compiling]:
        """Return the bucket's programs of larger batches and other layouts: they only save time."""
        return [
            program
            for step_kind in self.step_kinds.values()
            for batch_layout, program in step_kind.programs.items()
            if batch_layout != step_kind.smallest
        ]


def finished(result: T) -> Future[T]:
    """Return a future that is already completed with this result."""
    future: Future[T] = Future()
    future.set_result(result)
    return future


def is_ready(program: Future[Any]) -> bool:
    """Return whether a program has compiled without an error."""
    return program.done() and not program.cancelled() and program.exception() is None


def failed(program: Future[Any]) -> bool:
    """Return whether compiling the program failed."""
    return program.done() and not program.cancelled() and program.exception() is not None
