"""Compiler: a pipeline's pure functions → programs for one mesh slice, from shapes alone.

`Tracer` traces them, `ProgramStore` keeps what was compiled; here is which programs there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import jax
import numpy as np
from jax.stages import Traced

from models.interface.pipeline import Pipeline, PyTree
from models.interface.step_program import StepProgram
from models.interface.token_buckets import shared_inputs, shared_row, size_leaves
from models.parallel.axis_rules import Layout
from workers import metrics
from workers.programs.any_size import (
    conditioning_any_size,
    encoding_any_size,
    stepping_any_size,
)
from workers.programs.aot_cache import Executables, NoExecutables
from workers.programs.batch_layouts import layouts_by_batch
from workers.programs.bucket_programs import Program, Values
from workers.programs.flops import step_flops
from workers.programs.program_store import ProgramStore
from workers.programs.row_tree import as_plain_values, check_row, from_plain_values, leaves_by_name
from workers.programs.step_latency import BatchLayout
from workers.programs.tracer import Tracer

T = TypeVar("T")


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
        self._encodings: WeakValueDictionary[Hashable, SharedEncoding] = WeakValueDictionary()
        self._lock = Lock()
        """Held while an encoding is looked for."""

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
        """Return the encoding of inputs of this kind, which sizes that share theirs have as one."""
        return Encoding(self._shared_encoding(shared_inputs(inputs)), size_leaves(inputs))

    def _shared_encoding(self, inputs: Mapping[str, np.ndarray]) -> SharedEncoding:
        with self._lock:
            key = signature(inputs)
            found = self._encodings.get(key)
            if found is None:
                self._encodings[key] = found = SharedEncoding(self.tracer, self.store, inputs)
            return found

    def conditions(self, phase: StepProgram, values: Values, row: PyTree) -> Program | None:
        """Compile `Tracer.conditions`; None: the family has none."""
        own, row = row, shared_row(row)
        name, arguments = str(phase), (dict(values), row)
        traced = cache(lambda: self.tracer.conditions(phase, values, row))
        if not self.store.fact(
            ("has conditions", name), arguments, lambda: bool(jax.tree.leaves(traced().out_info))
        ):
            return None
        with metrics.compiling("conditions"):
            program = self.store.program(("conditions", name), arguments, traced)
        return program if own is row else conditioning_any_size(program)

    def step(
        self, phase: StepProgram, values: Values, batch_layout: BatchLayout, row: PyTree
    ) -> tuple[Program, frozenset[str]]:
        """Compile `Tracer.step` by one of the `batch_layouts`.

        Returns the names of the leaves of a row that it changes, too.

        Args:
            values: one step's, for their names and shapes.
        """
        own, row = row, shared_row(row)
        name, arguments, layout = str(phase), (dict(values), row), self.layout_of(batch_layout)
        traced = cache(lambda: self.tracer.step(phase, values, row, batch_layout.size, layout))
        with metrics.compiling("step"):
            program = self.store.program(
                ("step", name, *map(str, batch_layout)), arguments, traced, layout
            )
            changes = self.store.fact(
                ("changes", name), arguments, lambda: self.changes(traced(), row)
            )
        return program if own is row else stepping_any_size(program), changes

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
        row = shared_row(row)
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


class Once(Generic[T]):
    """Value that the first caller makes, while others wait for it; an error is made anew."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = Lock()
        self._made: list[T] = []

    def __call__(self) -> T:
        """Return the value."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


class SharedEncoding:
    """Encoding of one kind of inputs: the row it makes, and its program."""

    def __init__(
        self, tracer: Tracer, store: ProgramStore, inputs: Mapping[str, np.ndarray]
    ) -> None:
        traced = Once(lambda: tracer.encode(inputs))
        values = Once(
            lambda: store.fact(("row",), inputs, lambda: as_plain_values(traced().out_info))
        )
        self.row = Once(lambda: from_plain_values(values()))
        """Abstract row, long before the program is compiled."""
        self.program = Once(lambda: store.program(("encode",), inputs, traced))
        """Compiled (weights, inputs) → row."""


class Encoding:
    """Encoding of one kind of inputs, and of one size.

    Args:
        shared: with other sizes.
        own: leaves of its rows that are of its size.
    """

    def __init__(self, shared: SharedEncoding, own: Mapping[str, PyTree]) -> None:
        self._shared = shared
        self._own = own

    @cached_property
    def row(self) -> PyTree:
        """Abstract row, long before the program is compiled."""
        row = self._shared.row()
        return {**row, **jax.eval_shape(lambda: self._own)} if self._own else row

    def program(self, row: PyTree) -> Program:
        """Compile (weights, inputs) → row.

        Raises: TypeError: of another shape than the row given.
        """
        check_row("encode", self.row, row)
        with metrics.compiling("encode"):
            program = self._shared.program()
        return encoding_any_size(program, self) if self._own else program


def signature(inputs: Mapping[str, np.ndarray]) -> Hashable:
    """Return what is equal for inputs that the same program encodes."""
    return tuple(sorted((name, x.shape, x.dtype.str) for name, x in inputs.items()))
