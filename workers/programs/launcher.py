"""The seam between the engine and its programs: where a launch goes besides this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Protocol

import jax
import numpy as np

from models.interface.pipeline import Prepared, PyTree
from models.interface.step_program import StepProgram
from workers.programs.bucket_programs import BucketPrograms, Program
from workers.programs.row_tree import leaves_by_name, with_leaves
from workers.programs.step_latency import BatchLayout


class Launcher(Protocol):
    """Makes of each compiled program the one that the engine calls.

    What such a program returns as a row is for other programs to take: nobody else looks inside.
    """

    def on_loss(self, tell: Callable[[Exception], None]) -> None:
        """Tell this, from any thread, when nothing can be launched any more."""
        ...

    def on_stop(self, *, drain: Callable[[], Any], stop_now: Callable[[], Any]) -> None:
        """Call these, from any thread, when another process of the slice is asked to end."""
        ...

    def growing(self, programs: BucketPrograms, prepared: Prepared, larger: bool) -> None:
        """Tell that what the programs lack for this image is about to be compiled.

        Args:
            larger: its larger batches, too.
        """
        ...

    def encode(self, programs: BucketPrograms, program: Program) -> Program:
        """Return a program that makes a row on every process."""

    def conditions(self, programs: BucketPrograms, phase: StepProgram, program: Program) -> Program:
        """Compute conditions for steps to take, as rows are."""
        ...

    def step(
        self,
        programs: BucketPrograms,
        phase: StepProgram,
        batch_layout: BatchLayout,
        program: Program,
    ) -> Program:
        """Return a program that steps rows on every process."""

    def show(self, programs: BucketPrograms, what: str, program: Program) -> Program:
        """`what`: decode or preview."""
        ...

    def write(self, program: Program) -> Program:
        """Return a program that writes pages of adapters on every process (adapter_banks.py).

        Nothing else is launched while it is called.
        """

    def leaves(self, row: PyTree) -> Mapping[str, jax.Array]:
        """A row's leaves by name, to be fetched."""
        ...

    def restore(self, row: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree:
        """The row with these leaves in place of its own."""
        ...

    def wait(self, results: PyTree) -> PyTree:
        """A program's results when it has ended. Raises: its error; EngineDied: so has all else."""
        ...

    def fetch(self, results: PyTree) -> PyTree:
        """Wait for arrays, and bring them to the host."""
        ...


class OneHost:
    """Launcher of a slice whose devices are all this process's.

    Programs are called as they are, by several threads; those that write, while no other is.
    """

    def __init__(self) -> None:
        self._launches = 0
        self._turn = threading.Condition()

    def on_loss(self, tell: Callable[[Exception], None]) -> None:
        """Do nothing: there is nobody to lose."""

    def on_stop(self, *, drain: Callable[[], Any], stop_now: Callable[[], Any]) -> None:
        """Do nothing: nobody else is told to stop."""

    def growing(self, programs: BucketPrograms, prepared: Prepared, larger: bool) -> None:
        """Do nothing: nobody else compiles."""

    def encode(self, programs: BucketPrograms, program: Program) -> Program:
        """Return the program, launched beside others."""
        return self._beside(program)

    def conditions(self, programs: BucketPrograms, phase: StepProgram, program: Program) -> Program:
        """Return the program, launched beside others."""
        return self._beside(program)

    def step(
        self,
        programs: BucketPrograms,
        phase: StepProgram,
        batch_layout: BatchLayout,
        program: Program,
    ) -> Program:
        """Return the program, launched beside others."""
        return self._beside(program)

    def show(self, programs: BucketPrograms, what: str, program: Program) -> Program:
        """Return the program, launched beside others."""
        return self._beside(program)

    def write(self, program: Program) -> Program:
        """Return the program, launched alone."""

        def alone(*args: Any) -> Any:
            with self._turn:
                self._turn.wait_for(lambda: not self._launches)
                return program(*args)

        return alone

    def leaves(self, row: PyTree) -> Mapping[str, jax.Array]:
        """Return the row's leaves by name."""
        return leaves_by_name(row)

    def restore(self, row: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree:
        """Return the row with these leaves."""
        return with_leaves(row, leaves)

    def wait(self, results: PyTree) -> PyTree:
        """Wait until results are computed."""
        return jax.block_until_ready(results)

    def fetch(self, results: PyTree) -> PyTree:
        """Return the arrays' values."""
        return jax.tree.map(np.asarray, results)

    def _beside(self, program: Program) -> Program:
        @wraps(program)
        def launch(*args: Any) -> Any:
            with self._turn:
                self._launches += 1
            try:
                return program(*args)
            finally:
                with self._turn:
                    self._launches -= 1
                    self._turn.notify_all()

        return launch
