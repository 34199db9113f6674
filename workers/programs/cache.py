"""Program cache: the buckets in use, each compiled when an image first needs it.

Compilation runs in separate threads, so images whose programs are ready are not delayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakSet, WeakValueDictionary

from models.interface.pipeline import PreparedRow, PyTree
from models.interface.step_program import StepProgram
from workers.programs.bucket_programs import (
    BucketPrograms,
    Compiling,
    Program,
    ProgramNeeds,
    StepKind,
    Values,
    is_ready,
)
from workers.programs.compilation import THREADS, Compilation
from workers.programs.compile_threads import CompileThreads
from workers.programs.compiler import Compiler, signature
from workers.programs.launcher import Launcher
from workers.programs.step_latency import BatchLayout

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_BUCKETS = 32
"""Maximum number of cached buckets; the least recently used is evicted. Images in progress keep
theirs alive."""


class ProgramCache:
    """Cache of compiled programs by bucket. Use it from one thread.

    Args:
        batch_layouts: batch layouts of each step, in order of compilation; the first is required.
    """

    def __init__(
        self, compiler: Compiler, launcher: Launcher, batch_layouts: Sequence[BatchLayout]
    ) -> None:
        self._compiler = compiler
        self._launcher = launcher
        self._batch_layouts = batch_layouts
        self._buckets: dict[str, BucketPrograms] = {}
        """Cached programs by bucket, the most recently used last."""
        self._alive: WeakSet[BucketPrograms] = WeakSet()
        """All buckets that images or this cache reference."""
        self._shared: WeakValueDictionary[tuple[str, StepProgram], StepKind] = WeakValueDictionary()
        """Step kinds shared by several sizes, by token bucket."""
        self._threads = CompileThreads(THREADS)

    def of(self, prepared: PreparedRow, larger: bool = True) -> BucketPrograms:
        """Return this image's programs; missing ones start to compile in order of need.

        Args:
            larger: also compile larger batches.
        """
        programs = self._find(prepared.bucket)
        self.grow(programs, prepared, larger)
        return programs

    def has(self, prepared: PreparedRow) -> bool:
        """Return whether all of this image's programs are compiled, without compiling any."""
        programs = self._buckets.get(prepared.bucket)
        if programs is None or signature(prepared.inputs) not in programs.encoders:
            return False
        step_programs = {step.program for step in prepared.steps}
        return step_programs <= programs.step_kinds.keys() and all(
            map(is_ready, programs.necessary())
        )

    def grow(self, programs: BucketPrograms, prepared: PreparedRow, larger: bool = True) -> None:
        """Start to compile the programs that the bucket lacks for this image.

        Required programs precede larger batches of any bucket. Within each group the threads take
        the oldest first, since a program may wait for an earlier one.
        """
        values = {step.program: step.values for step in prepared.steps}
        self._alive.add(programs)
        self._adopt(programs, prepared.step_bucket, values)
        step_kinds = [
            programs.step_kinds.get(name) or self._step_kind(name, prepared.step_bucket)
            for name in values
        ]
        added = [step_kind for step_kind in step_kinds if not step_kind.programs]
        wanted = self._batch_layouts[1:] if larger else []
        lacking = {
            step_kind: [w for w in wanted if w not in step_kind.programs]
            for step_kind in step_kinds
        }
        is_new, key = not programs.encoders, signature(prepared.inputs)
        if key in programs.encoders and not (added or any(lacking.values())):
            return
        programs.compilation = Compilation(sum(map(len, lacking.values())))
        self._launcher.growing(programs, prepared, larger)
        if key not in programs.encoders:
            self._add_encoder(programs, prepared)
        for step_kind in added:
            programs.step_kinds[step_kind.program] = step_kind
            step_kind.made_by = programs.compilation
            self._add_modulations(programs, step_kind, values[step_kind.program])
            self._add_batch_layouts(
                programs, step_kind, values[step_kind.program], self._batch_layouts[:1]
            )
            if step_kind.bucket:
                self._shared[step_kind.bucket, step_kind.program] = step_kind
        if is_new:
            programs.decode = self._show(programs, "decode", self._compiler.decode)
            programs.preview = self._show(programs, "preview", self._compiler.preview)
        for step_kind, batch_layouts in lacking.items():
            self._add_batch_layouts(programs, step_kind, values[step_kind.program], batch_layouts)

    def _adopt(
        self, programs: BucketPrograms, step_bucket: str, names: Iterable[StepProgram]
    ) -> None:
        """Reuse the step kinds that images of other sizes have compiled."""
        for name in names:
            step_kind = self._shared.get((step_bucket, name)) if step_bucket else None
            if step_kind is None or step_kind.is_broken or name in programs.step_kinds:
                continue
            programs.step_kinds[name] = step_kind
            assert step_kind.made_by is not None
            programs.made_by |= dict.fromkeys(step_kind.necessary, step_kind.made_by)

    @contextmanager
    def awaited(self, programs: BucketPrograms, prepared: PreparedRow) -> Iterator[None]:
        """Register an image that waits for its programs to compile.

        If the wait is aborted, drop the programs that no other image awaits and no thread has
        started.
        """
        step_programs = frozenset(step.program for step in prepared.steps)
        need = ProgramNeeds(signature(prepared.inputs), step_programs)
        programs.awaited.append(need)
        try:
            yield
        except BaseException:
            programs.awaited.remove(need)
            self._drop(programs, need)
            raise
        programs.awaited.remove(need)

    def _drop(self, programs: BucketPrograms, need: ProgramNeeds) -> None:
        """Drop queued programs that no other image awaits; the rest stays."""
        wanted = {
            other.step_kinds.get(name)
            for other in self._alive
            for image in other.awaited
            for name in image.step_programs
        }
        is_encoder_wanted = any(other.encoder == need.encoder for other in programs.awaited)
        if not is_encoder_wanted and programs.encoders[need.encoder].cancel():
            del programs.encoders[need.encoder]
        for name in need.step_programs:
            if (step_kind := programs.step_kinds[name]) not in wanted:
                self._drop_step_kind(step_kind)
        if not (programs.encoders and programs.step_kinds):
            self._forget(programs)

    def _drop_step_kind(self, step_kind: StepKind) -> None:
        if all(map(is_ready, step_kind.necessary)):
            return  # only larger batches are pending, for its other users
        if step_kind.flops is not None and step_kind.flops.cancel():
            step_kind.flops = None
        step_kind.modulations.cancel()
        step_kind.programs = {
            batch_layout: program
            for batch_layout, program in step_kind.programs.items()
            if not program.cancel()
        }
        if self._batch_layouts[0] in step_kind.programs:
            return
        for programs in self._alive:
            if programs.step_kinds.get(step_kind.program) is step_kind:
                del programs.step_kinds[step_kind.program]

    def _forget(self, programs: BucketPrograms) -> None:
        for program in (programs.row, programs.decode, programs.preview):
            program.cancel()
        if self._buckets.get(programs.bucket) is programs:
            del self._buckets[programs.bucket]

    def count(self, programs: BucketPrograms, prepared: PreparedRow) -> None:
        """Start to count the FLOPs of the bucket's steps, after all pending compilations.

        Steps that may skip most of their work are not counted, because the amount varies.
        """
        values = {step.program: step.values for step in prepared.steps}
        for name, step_values in values.items():
            step_kind = programs.step_kinds[name]
            if step_kind.flops is None and name.cache is None:
                count = partial(self._flops, programs, step_kind, step_values)
                step_kind.flops = self._threads.submit(count, can_wait=True)

    def _flops(self, programs: BucketPrograms, step_kind: StepKind, values: Values) -> float:
        step_kind.programs[step_kind.smallest].result()  # a failed program is not counted
        try:
            return self._compiler.flops(step_kind.program, values, programs.row.result())
        except Exception as error:
            log.warning("the operations of a step are not counted: %s", error)
            raise

    def close(self) -> None:
        """Drop queued compilations; running ones continue to their end."""
        self._threads.close()

    def _find(self, bucket: str) -> BucketPrograms:
        programs = self._buckets.pop(bucket, None)
        if programs is None or programs.is_broken:
            programs = BucketPrograms(bucket)
        self._buckets[bucket] = programs
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return programs

    def _add_encoder(self, programs: BucketPrograms, prepared: PreparedRow) -> None:
        encoding = self._compiler.encoding(prepared.inputs)
        if not programs.encoders:
            programs.row = self._threads.submit(lambda: encoding.row)
            programs.compilation.programs.append(programs.row)

        def compile_for(row: PyTree) -> Program:
            return self._launcher.encode(programs, encoding.program(row))

        programs.encoders[signature(prepared.inputs)] = self._of_row(programs, compile_for)

    def _step_kind(self, name: StepProgram, step_bucket: str) -> StepKind:
        is_swapped = self._compiler.weights.is_swapped(name.network)
        return StepKind(name, name.network if is_swapped else None, bucket=step_bucket)

    def _add_modulations(
        self, programs: BucketPrograms, step_kind: StepKind, values: Values
    ) -> None:
        def compile_for(row: PyTree) -> Program | None:
            program = self._compiler.modulations(step_kind.program, values, row)
            if program is None:
                return None
            return self._launcher.modulations(programs, step_kind.program, program)

        step_kind.modulations = self._of_row(programs, compile_for)

    def _add_batch_layouts(
        self,
        programs: BucketPrograms,
        step_kind: StepKind,
        values: Values,
        batch_layouts: Sequence[BatchLayout],
    ) -> None:
        def compile_for(batch_layout: BatchLayout, row: PyTree) -> Program:
            program, step_kind.changes = self._compiler.step(
                step_kind.program, values, batch_layout, row
            )
            return self._launcher.step(programs, step_kind.program, batch_layout, program)

        for batch_layout in batch_layouts:
            is_optional = batch_layout != self._batch_layouts[0]
            step_kind.programs[batch_layout] = self._of_row(
                programs, partial(compile_for, batch_layout), is_optional
            )

    def _show(
        self, programs: BucketPrograms, what: str, compile_for: Callable[[PyTree], Program]
    ) -> Compiling:
        return self._of_row(
            programs, lambda row: self._launcher.show(programs, what, compile_for(row))
        )

    def _of_row(
        self,
        programs: BucketPrograms,
        compile_for: Callable[[PyTree], T],
        is_optional: bool = False,
    ) -> Future[T]:
        compilation = programs.compilation

        def make() -> T:
            with compilation.making(is_optional):
                return compile_for(programs.row.result())

        future = self._threads.submit(make, can_wait=is_optional)
        compilation.programs.append(future)
        programs.made_by[future] = compilation
        return future
