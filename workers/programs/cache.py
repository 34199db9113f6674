"""Programs: the shapes in use, each compiled when a picture first needs it.

Compiling goes on in threads of its own, so pictures that have their programs are not held up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from models.interface.pipeline import Prepared, PyTree
from models.interface.step_program import StepProgram
from workers.programs.bucket_programs import (
    Asked,
    Compiling,
    Phase,
    Program,
    Shape,
    Values,
    is_ready,
)
from workers.programs.compilation import COMPILERS, Compilation
from workers.programs.compiler import Compiler, signature
from workers.programs.launcher import Launcher
from workers.programs.step_latency import Way

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_SHAPES = 32
"""Buckets kept; the longest unused one makes room. Pictures under way keep theirs alive."""


class Programs:
    """The table of shapes, by bucket. To be used from one thread.

    Args:
        ways: of doing each step, those that come first first; the first is necessary.
    """

    def __init__(self, compiler: Compiler, launcher: Launcher, ways: Sequence[Way]) -> None:
        self._compiler = compiler
        self._launcher = launcher
        self._ways = ways
        self._shapes: dict[str, Shape] = {}
        """The one used last is the last."""
        self._threads = ThreadPoolExecutor(COMPILERS, "compile")

    def shape(self, prepared: Prepared) -> Shape:
        """This picture's programs; missing ones begin to compile, those it begins with first."""
        shape = self._find(prepared.bucket)
        self.grow(shape, prepared)
        return shape

    def grow(self, shape: Shape, prepared: Prepared) -> None:
        """Begin to compile what the shape lacks for this picture.

        The threads take programs in order: one may wait for another that was asked for before it.
        """
        values = {step.phase: step.values for step in prepared.steps}
        phases = [shape.phases.get(name) or self._phase(name) for name in values]
        added = [phase for phase in phases if not phase.programs]
        larger = {phase: [w for w in self._ways[1:] if w not in phase.programs] for phase in phases}
        is_new, key = not shape.encoders, signature(prepared.inputs)
        if key in shape.encoders and not (added or any(larger.values())):
            return
        shape.compilation = Compilation(sum(map(len, larger.values())))
        self._launcher.growing(shape, prepared)
        if key not in shape.encoders:
            self._add_encoder(shape, prepared)
        for phase in added:
            shape.phases[phase.program] = phase
            self._add_conditions(shape, phase, values[phase.program])
            self._add_ways(shape, phase, values[phase.program], self._ways[:1])
        if is_new:
            shape.decode = self._show(shape, "decode", self._compiler.decode)
            shape.preview = self._show(shape, "preview", self._compiler.preview)
        for phase, ways in larger.items():
            self._add_ways(shape, phase, values[phase.program], ways)

    @contextmanager
    def awaited(self, shape: Shape, prepared: Prepared) -> Iterator[None]:
        """Inside, a picture waits for its programs. Where it leaves without them, those are dropped
        that nobody else waits for and no thread has begun."""
        phases = frozenset(step.phase for step in prepared.steps)
        asked = Asked(signature(prepared.inputs), phases)
        shape.awaited.append(asked)
        try:
            yield
        except BaseException:
            shape.awaited.remove(asked)
            self._drop(shape, asked)
            raise
        shape.awaited.remove(asked)

    def _drop(self, shape: Shape, asked: Asked) -> None:
        """What others have of the shape stays, or it would be compiled twice."""
        wanted = {name for other in shape.awaited for name in other.phases}
        is_encoder_wanted = any(other.encoder == asked.encoder for other in shape.awaited)
        if not is_encoder_wanted and shape.encoders[asked.encoder].cancel():
            del shape.encoders[asked.encoder]
        for name in asked.phases - wanted:
            self._drop_phase(shape, shape.phases[name])
        if not (shape.encoders and shape.phases):
            self._forget(shape)

    def _drop_phase(self, shape: Shape, phase: Phase) -> None:
        if all(map(is_ready, phase.necessary)):
            return  # larger batches are still to come, for whoever has it
        if phase.flops is not None and phase.flops.cancel():
            phase.flops = None
        phase.conditions.cancel()
        phase.programs = {way: one for way, one in phase.programs.items() if not one.cancel()}
        if self._ways[0] not in phase.programs:
            del shape.phases[phase.program]

    def _forget(self, shape: Shape) -> None:
        for program in (shape.row, shape.decode, shape.preview):
            program.cancel()
        if self._shapes.get(shape.bucket) is shape:
            del self._shapes[shape.bucket]

    def count(self, shape: Shape, prepared: Prepared) -> None:
        """Begin to count the operations of the shape's steps, behind all that is to be compiled. Of
        steps that may leave most of theirs out, nobody knows how many they are."""
        values = {step.phase: step.values for step in prepared.steps}
        for name, some in values.items():
            phase = shape.phases[name]
            if phase.flops is None and name.cache is None:
                phase.flops = self._threads.submit(self._flops, shape, phase, some)

    def _flops(self, shape: Shape, phase: Phase, values: Values) -> float:
        phase.programs[phase.smallest].result()  # else nothing is to be counted
        try:
            return self._compiler.flops(phase.program, values, shape.row.result())
        except Exception as error:
            log.warning("the operations of a step are not counted: %s", error)
            raise

    def close(self) -> None:
        """What is being compiled is compiled to its end; the rest is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _find(self, bucket: str) -> Shape:
        shape = self._shapes.pop(bucket, None)
        if shape is None or shape.is_broken:
            shape = Shape(bucket)
        self._shapes[bucket] = shape
        if len(self._shapes) > MAX_SHAPES:
            del self._shapes[next(iter(self._shapes))]
        return shape

    def _add_encoder(self, shape: Shape, prepared: Prepared) -> None:
        encoding = self._compiler.encoding(prepared.inputs)
        if not shape.encoders:
            shape.row = self._threads.submit(lambda: encoding.row)
            shape.compilation.programs.append(shape.row)

        def compile_for(row: PyTree) -> Program:
            return self._launcher.encode(shape, encoding.program(row))

        shape.encoders[signature(prepared.inputs)] = self._of_row(shape, compile_for)

    def _phase(self, name: StepProgram) -> Phase:
        is_swapped = self._compiler.weights.is_swapped(name.network)
        return Phase(name, name.network if is_swapped else None)

    def _add_conditions(self, shape: Shape, phase: Phase, values: Values) -> None:
        def compile_for(row: PyTree) -> Program | None:
            program = self._compiler.conditions(phase.program, values, row)
            if program is None:
                return None
            return self._launcher.conditions(shape, phase.program, program)

        phase.conditions = self._of_row(shape, compile_for)

    def _add_ways(self, shape: Shape, phase: Phase, values: Values, ways: Sequence[Way]) -> None:
        def compile_for(way: Way, row: PyTree) -> Program:
            program, phase.changes = self._compiler.step(phase.program, values, way, row)
            return self._launcher.step(shape, phase.program, way, program)

        for way in ways:
            is_optional = way != self._ways[0]
            phase.programs[way] = self._of_row(shape, partial(compile_for, way), is_optional)

    def _show(self, shape: Shape, what: str, compile_for: Callable[[PyTree], Program]) -> Compiling:
        return self._of_row(shape, lambda row: self._launcher.show(shape, what, compile_for(row)))

    def _of_row(
        self, shape: Shape, compile_for: Callable[[PyTree], T], is_optional: bool = False
    ) -> Future[T]:
        compilation = shape.compilation

        def make() -> T:
            with compilation.making(is_optional):
                return compile_for(shape.row.result())

        future = self._threads.submit(make)
        compilation.programs.append(future)
        shape.made_by[future] = compilation
        return future
