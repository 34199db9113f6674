"""Compiler: a pipeline's pure functions → programs for one mesh slice, from shapes alone.

`Tracer` traces them, `ProgramStore` keeps what was compiled; here is which programs there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache, cached_property

import jax
import numpy as np
from jax.stages import Traced

from models.interface.pipeline import Pipeline, PyTree
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from workers import metrics
from workers.programs.aot_cache import Executables, NoExecutables
from workers.programs.batch_layouts import layouts_by_batch
from workers.programs.bucket_programs import Program, Values
from workers.programs.flops import step_flops
from workers.programs.program_store import ProgramStore
from workers.programs.row_tree import as_plain_values, check_row, from_plain_values, leaves_by_name
from workers.programs.step_latency import BatchLayout
from workers.programs.tracer import Tracer


class Compiler:
    """Ahead-of-time compilation; its methods may run in any thread.

    Args:
        layout: how the slice splits its work.
        executables: where programs may be that need not be compiled.
    """

    def __init__(
        self, pipeline: Pipeline, layout: Layout, executables: Executables | None = None
    ) -> None:
        self.pipeline = pipeline
        self.layout = layout
        self.tracer = Tracer(pipeline, layout)
        self.arguments = self.tracer.arguments
        self.weights = self.arguments.weights
        self.store = ProgramStore(
            pipeline.spec.name, self.arguments, executables or NoExecutables()
        )
        self._layouts: Mapping[BatchLayout, Layout] = {}

    def batch_layouts(self, sizes: Sequence[int], elastic: bool) -> list[BatchLayout]:
        """Return how so many rows can be stepped: ascending.

        Args:
            elastic: by layouts too that have several rows side by side.
        """
        if elastic:
            self._layouts = layouts_by_batch(self.layout, sizes, self.arguments.stay_under)
        else:
            self._layouts = {BatchLayout(size): self.layout for size in sizes}
        return sorted(self._layouts)

    def layout_of(self, batch_layout: BatchLayout) -> Layout:
        """Return how the slice splits a step of that batch layout."""
        return self._layouts.get(batch_layout, self.layout)

    def encoding(self, inputs: Mapping[str, np.ndarray]) -> Encoding:
        """Return the encoding of inputs of this kind."""
        return Encoding(self.tracer, self.store, inputs)

    def conditions(self, phase: StepProgram, values: Values, row: PyTree) -> Program | None:
        """Compile `Tracer.conditions`; None: the family has none."""
        name, arguments = str(phase), (dict(values), row)
        traced = cache(lambda: self.tracer.conditions(phase, values, row))
        if not self.store.fact(
            ("has conditions", name), arguments, lambda: bool(jax.tree.leaves(traced().out_info))
        ):
            return None
        with metrics.compiling("conditions"):
            return self.store.program(("conditions", name), arguments, traced)

    def step(
        self, phase: StepProgram, values: Values, batch_layout: BatchLayout, row: PyTree
    ) -> tuple[Program, frozenset[str]]:
        """Compile `Tracer.step` by one of the `batch_layouts`.

        Returns the names of the leaves of a row that it changes, too.

        Args:
            values: one step's, for their names and shapes.
        """
        name, arguments, layout = str(phase), (dict(values), row), self.layout_of(batch_layout)
        traced = cache(lambda: self.tracer.step(phase, values, row, batch_layout.size, layout))
        with metrics.compiling("step"):
            program = self.store.program(
                ("step", name, *map(str, batch_layout)), arguments, traced, layout
            )
            changes = self.store.fact(
                ("changes", name), arguments, lambda: self.changes(traced(), row)
            )
            return program, changes

    def decode(self, row: PyTree) -> Program:
        """Compile `Tracer.decode`."""
        with metrics.compiling("decode"):
            return self.store.program(("decode",), row, lambda: self.tracer.decode(row))

    def preview(self, row: PyTree) -> Program:
        """Compile `Tracer.preview`."""
        with metrics.compiling("preview"):
            return self.store.program(("preview",), row, lambda: self.tracer.preview(row))

    def flops(self, phase: StepProgram, values: Values, row: PyTree) -> float:
        """Return the operations of one row's step, as `step` has its arguments. May trace."""
        return self.store.fact(
            ("flops", str(phase)),
            (dict(values), row),
            lambda: step_flops(self.pipeline, self.weights, phase, values, row),
        )

    def known_compile_s(self, bucket: str) -> float | None:
        """Return the seconds that compiling the programs of the queue's bucket took once.

        Where they lie in files now; None: they do not.
        """
        seconds: float | None = self.store.recall(self._compile_s(bucket))
        return seconds

    def record_compile_s(self, bucket: str, seconds: float) -> None:
        """Note that the programs of the queue's bucket lie in files, and what they took."""
        self.store.fact(self._compile_s(bucket), {}, lambda: seconds)

    def _compile_s(self, bucket: str) -> tuple[str, ...]:
        """Names that fact: with other batch layouts its steps are other programs."""
        return ("compile_s", bucket, *map(str, sorted(self._layouts)))

    def changes(self, traced: Traced, row: PyTree) -> frozenset[str]:
        """Return the leaves of a row that a step's program does not simply give back."""
        names = list(leaves_by_name(row))
        program = traced.jaxpr.jaxpr
        first = len(jax.tree.leaves(self.arguments.abstract_weights))
        before = program.invars[first : first + len(names)]
        after = program.outvars[: len(names)]
        return frozenset(
            name for name, old, new in zip(names, before, after, strict=True) if new is not old
        )


class Encoding:
    """Encoding of one kind of inputs: the row it makes, and its program."""

    def __init__(
        self, tracer: Tracer, store: ProgramStore, inputs: Mapping[str, np.ndarray]
    ) -> None:
        self._store = store
        self._inputs = dict(inputs)
        self._traced = cache(lambda: tracer.encode(inputs))

    @cached_property
    def row(self) -> PyTree:
        """Abstract row, long before the program is compiled."""
        return from_plain_values(
            self._store.fact(
                ("row",), self._inputs, lambda: as_plain_values(self._traced().out_info)
            )
        )

    def program(self, row: PyTree) -> Program:
        """Compile (weights, inputs) → row.

        Raises: TypeError: of another shape than the row given.
        """
        check_row("encode", self.row, row)
        with metrics.compiling("encode"):
            return self._store.program(("encode",), self._inputs, self._traced)


def signature(inputs: Mapping[str, np.ndarray]) -> Hashable:
    """Return what is equal for inputs that the same program encodes."""
    return tuple(sorted((name, x.shape, x.dtype.str) for name, x in inputs.items()))
