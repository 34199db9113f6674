"""Program cache: the buckets in use, each compiled when an image first needs it.

Compiling goes on in threads of its own, so images that have their programs are not held up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakSet, WeakValueDictionary

from models.interface.pipeline import Prepared, PyTree
from models.interface.step_program import StepProgram
from workers.programs.bucket_programs import (
    Asked,
    BucketPrograms,
    Compiling,
    Phase,
    Program,
    Values,
    is_ready,
)
from workers.programs.compilation import COMPILERS, Compilation
from workers.programs.compile_threads import CompileThreads
from workers.programs.compiler import Compiler, signature
from workers.programs.launcher import Launcher
from workers.programs.step_latency import BatchLayout

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_BUCKETS = 32
"""Buckets kept; the least recently used one leaves. Images in progress keep theirs alive."""


class ProgramCache:
    """Compiled programs by bucket. To be used from one thread.

    Args:
        batch_layouts: of each step, in order of compiling; the first is necessary.
    """

    def __init__(
        self, compiler: Compiler, launcher: Launcher, batch_layouts: Sequence[BatchLayout]
    ) -> None:
        self._compiler = compiler
        self._launcher = launcher
        self._batch_layouts = batch_layouts
        self._buckets: dict[str, BucketPrograms] = {}
        """The one used last is the last."""
        self._alive: WeakSet[BucketPrograms] = WeakSet()
        """All that images or this cache refer to."""
        self._shared: WeakValueDictionary[tuple[str, StepProgram], Phase] = WeakValueDictionary()
        """Phases that sizes share, by their step bucket."""
        self._threads = CompileThreads(COMPILERS)

    def of(self, prepared: Prepared, larger: bool = True) -> BucketPrograms:
        """Return this image's programs; missing ones begin to compile, the first it needs first.

        Args:
            larger: those of larger batches, too.
        """
        programs = self._find(prepared.bucket)
        self.grow(programs, prepared, larger)
        return programs

    def has(self, prepared: Prepared) -> bool:
        """Return whether all of this image's programs are compiled; begin to compile none."""
        programs = self._buckets.get(prepared.bucket)
        if programs is None or signature(prepared.inputs) not in programs.encoders:
            return False
        phases = {step.phase for step in prepared.steps}
        return phases <= programs.phases.keys() and all(map(is_ready, programs.necessary()))

    def grow(self, programs: BucketPrograms, prepared: Prepared, larger: bool = True) -> None:
        """Begin to compile what the bucket lacks for this image.

        Programs that it cannot do without go before larger batches, of whichever bucket. Of each
        kind the threads take the oldest first: one may wait for another that was asked for before.
        """
        values = {step.phase: step.values for step in prepared.steps}
        self._alive.add(programs)
        self._adopt(programs, prepared.step_bucket, values)
        phases = [
            programs.phases.get(name) or self._phase(name, prepared.step_bucket) for name in values
        ]
        added = [phase for phase in phases if not phase.programs]
        wanted = self._batch_layouts[1:] if larger else []
        lacking = {phase: [w for w in wanted if w not in phase.programs] for phase in phases}
        is_new, key = not programs.encoders, signature(prepared.inputs)
        if key in programs.encoders and not (added or any(lacking.values())):
            return
        programs.compilation = Compilation(sum(map(len, lacking.values())))
        self._launcher.growing(programs, prepared, larger)
        if key not in programs.encoders:
            self._add_encoder(programs, prepared)
        for phase in added:
            programs.phases[phase.program] = phase
            phase.made_by = programs.compilation
            self._add_conditions(programs, phase, values[phase.program])
            self._add_batch_layouts(programs, phase, values[phase.program], self._batch_layouts[:1])
            if phase.bucket:
                self._shared[phase.bucket, phase.program] = phase
        if is_new:
            programs.decode = self._show(programs, "decode", self._compiler.decode)
            programs.preview = self._show(programs, "preview", self._compiler.preview)
        for phase, batch_layouts in lacking.items():
            self._add_batch_layouts(programs, phase, values[phase.program], batch_layouts)

    def _adopt(
        self, programs: BucketPrograms, step_bucket: str, names: Iterable[StepProgram]
    ) -> None:
        """Give a bucket the phases that images of other sizes have made."""
        for name in names:
            phase = self._shared.get((step_bucket, name)) if step_bucket else None
            if phase is None or phase.is_broken or name in programs.phases:
                continue
            programs.phases[name] = phase
            assert phase.made_by is not None
            programs.made_by |= dict.fromkeys(phase.necessary, phase.made_by)

    @contextmanager
    def awaited(self, programs: BucketPrograms, prepared: Prepared) -> Iterator[None]:
        """Inside, an image waits for its programs.

        Where it leaves without them, those are dropped that nobody else waits for and no thread has
        begun.
        """
        phases = frozenset(step.phase for step in prepared.steps)
        asked = Asked(signature(prepared.inputs), phases)
        programs.awaited.append(asked)
        try:
            yield
        except BaseException:
            programs.awaited.remove(asked)
            self._drop(programs, asked)
            raise
        programs.awaited.remove(asked)

    def _drop(self, programs: BucketPrograms, asked: Asked) -> None:
        """Drop what nobody else waits for; the rest stays, or it would be compiled twice."""
        wanted = {
            other.phases.get(name)
            for other in self._alive
            for image in other.awaited
            for name in image.phases
        }
        is_encoder_wanted = any(other.encoder == asked.encoder for other in programs.awaited)
        if not is_encoder_wanted and programs.encoders[asked.encoder].cancel():
            del programs.encoders[asked.encoder]
        for name in asked.phases:
            if (phase := programs.phases[name]) not in wanted:
                self._drop_phase(phase)
        if not (programs.encoders and programs.phases):
            self._forget(programs)

    def _drop_phase(self, phase: Phase) -> None:
        if all(map(is_ready, phase.necessary)):
            return  # larger batches are still to come, for whoever has it
        if phase.flops is not None and phase.flops.cancel():
            phase.flops = None
        phase.conditions.cancel()
        phase.programs = {
            batch_layout: one for batch_layout, one in phase.programs.items() if not one.cancel()
        }
        if self._batch_layouts[0] in phase.programs:
            return
        for programs in self._alive:
            if programs.phases.get(phase.program) is phase:
                del programs.phases[phase.program]

    def _forget(self, programs: BucketPrograms) -> None:
        for program in (programs.row, programs.decode, programs.preview):
            program.cancel()
        if self._buckets.get(programs.bucket) is programs:
            del self._buckets[programs.bucket]

    def count(self, programs: BucketPrograms, prepared: Prepared) -> None:
        """Begin to count the operations of the bucket's steps, behind all that is to be compiled.

        Of steps that may leave most of theirs out, nobody knows how many they are.
        """
        values = {step.phase: step.values for step in prepared.steps}
        for name, some in values.items():
            phase = programs.phases[name]
            if phase.flops is None and name.cache is None:
                count = partial(self._flops, programs, phase, some)
                phase.flops = self._threads.submit(count, can_wait=True)

    def _flops(self, programs: BucketPrograms, phase: Phase, values: Values) -> float:
        phase.programs[phase.smallest].result()  # else nothing is to be counted
        try:
            return self._compiler.flops(phase.program, values, programs.row.result())
        except Exception as error:
            log.warning("the operations of a step are not counted: %s", error)
            raise

    def close(self) -> None:
        """Drop what is queued for compiling; what is being compiled goes on to its end."""
        self._threads.close()

    def _find(self, bucket: str) -> BucketPrograms:
        programs = self._buckets.pop(bucket, None)
        if programs is None or programs.is_broken:
            programs = BucketPrograms(bucket)
        self._buckets[bucket] = programs
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return programs

    def _add_encoder(self, programs: BucketPrograms, prepared: Prepared) -> None:
        encoding = self._compiler.encoding(prepared.inputs)
        if not programs.encoders:
            programs.row = self._threads.submit(lambda: encoding.row)
            programs.compilation.programs.append(programs.row)

        def compile_for(row: PyTree) -> Program:
            return self._launcher.encode(programs, encoding.program(row))

        programs.encoders[signature(prepared.inputs)] = self._of_row(programs, compile_for)

    def _phase(self, name: StepProgram, step_bucket: str) -> Phase:
        is_swapped = self._compiler.weights.is_swapped(name.network)
        return Phase(name, name.network if is_swapped else None, bucket=step_bucket)

    def _add_conditions(self, programs: BucketPrograms, phase: Phase, values: Values) -> None:
        def compile_for(row: PyTree) -> Program | None:
            program = self._compiler.conditions(phase.program, values, row)
            if program is None:
                return None
            return self._launcher.conditions(programs, phase.program, program)

        phase.conditions = self._of_row(programs, compile_for)

    def _add_batch_layouts(
        self,
        programs: BucketPrograms,
        phase: Phase,
        values: Values,
        batch_layouts: Sequence[BatchLayout],
    ) -> None:
        def compile_for(batch_layout: BatchLayout, row: PyTree) -> Program:
            program, phase.changes = self._compiler.step(phase.program, values, batch_layout, row)
            return self._launcher.step(programs, phase.program, batch_layout, program)

        for batch_layout in batch_layouts:
            is_optional = batch_layout != self._batch_layouts[0]
            phase.programs[batch_layout] = self._of_row(
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
