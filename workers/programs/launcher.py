"""Launcher interface between the engine and its programs: runs each launch on all processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Protocol

import jax
import numpy as np

from models.interface.pipeline import PreparedRow, PyTree
from models.interface.step_program import StepProgram
from workers.programs.bucket_programs import BucketPrograms, Program
from workers.programs.row_tree import leaves_by_name, with_leaves
from workers.programs.step_latency import BatchLayout


class Launcher(Protocol):
    """Protocol that wraps each compiled program into one that runs on all processes of the slice.

    Rows that these programs return are opaque: only other programs may use them.
    """

    def on_loss(self, callback: Callable[[Exception], None]) -> None:
        """Register a callback, called from any thread, for when no more launches are possible."""
        ...

    def on_stop(self, *, drain: Callable[[], Any], stop_now: Callable[[], Any]) -> None:
        """Register callbacks, called from any thread, for when a slice's process should stop."""
        ...

    def growing(self, programs: BucketPrograms, prepared: PreparedRow, larger: bool) -> None:
        """Announce that the programs missing for this image are about to be compiled.

        Args:
            larger: including larger batches.
        """
        ...

    def encode(self, programs: BucketPrograms, program: Program) -> Program:
        """Return a program that encodes a row on every process."""

    def modulations(
        self, programs: BucketPrograms, step_program: StepProgram, program: Program
    ) -> Program:
        """Return a program that computes modulations on every process."""
        ...

    def step(
        self,
        programs: BucketPrograms,
        step_program: StepProgram,
        batch_layout: BatchLayout,
        program: Program,
    ) -> Program:
        """Return a program that steps rows on every process."""

    def show(self, programs: BucketPrograms, what: str, program: Program) -> Program:
        """Return a program that decodes or previews a row (`what`) on every process."""
        ...

    def write(self, program: Program) -> Program:
        """Return a program that writes adapter pages on every process (adapter_banks.py).

        Nothing else is launched during its calls.
        """

    def leaves(self, row: PyTree) -> Mapping[str, jax.Array]:
        """Return a row's leaves by name, for `fetch`."""
        ...

    def restore(self, row: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree:
        """Return a row with these leaves replaced."""
        ...

    def wait(self, results: PyTree) -> PyTree:
        """Wait until a program's results are computed.

        Raises: the program's error; EngineFailed: the engine failed.
        """
        ...

    def fetch(self, results: PyTree) -> PyTree:
        """Wait for device arrays, and copy them to the host."""
        ...


class OneHost:
    """Launcher of a slice whose devices all belong to this process.

    Programs are called directly, from several threads; programs that write run exclusively.
    """

    def __init__(self) -> None:
        self._launches = 0
        self._launch_lock = threading.Condition()

    def on_loss(self, callback: Callable[[Exception], None]) -> None:
        """Do nothing: no other process can be lost."""

    def on_stop(self, *, drain: Callable[[], Any], stop_now: Callable[[], Any]) -> None:
        """Do nothing: no other process can be stopped."""

    def growing(self, programs: BucketPrograms, prepared: PreparedRow, larger: bool) -> None:
        """Do nothing: no other process compiles."""

    def encode(self, programs: BucketPrograms, program: Program) -> Program:
        """Return the encode program, callable concurrently with others."""
        return self._concurrent(program)

    def modulations(
        self, programs: BucketPrograms, step_program: StepProgram, program: Program
    ) -> Program:
        """Return the modulation program, callable concurrently with others."""
        return self._concurrent(program)

    def step(
        self,
        programs: BucketPrograms,
        step_program: StepProgram,
        batch_layout: BatchLayout,
        program: Program,
    ) -> Program:
        """Return the step program, callable concurrently with others."""
        return self._concurrent(program)

    def show(self, programs: BucketPrograms, what: str, program: Program) -> Program:
        """Return the decode or preview program, callable concurrently with others."""
        return self._concurrent(program)

    def write(self, program: Program) -> Program:
        """Return the program that writes adapter pages, with exclusive launches."""

        def alone(*args: Any) -> Any:
            with self._launch_lock:
                self._launch_lock.wait_for(lambda: not self._launches)
                return program(*args)

        return alone

    def leaves(self, row: PyTree) -> Mapping[str, jax.Array]:
        """Return the row's leaves by name."""
        return leaves_by_name(row)

    def restore(self, row: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree:
        """Return the row with these leaves replaced."""
        return with_leaves(row, leaves)

    def wait(self, results: PyTree) -> PyTree:
        """Wait until a program's results are computed."""
        return jax.block_until_ready(results)

    def fetch(self, results: PyTree) -> PyTree:
        """Copy a program's results to NumPy arrays."""
        return jax.tree.map(np.asarray, results)

    def _concurrent(self, program: Program) -> Program:
        @wraps(program)
        def launch(*args: Any) -> Any:
            with self._launch_lock:
                self._launches += 1
            try:
                return program(*args)
            finally:
                with self._launch_lock:
                    self._launches -= 1
                    self._launch_lock.notify_all()

        return launch
