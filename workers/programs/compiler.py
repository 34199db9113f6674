"""Compiler: turns a pipeline's pure functions into programs for one mesh slice, from shapes only.

Defines which programs exist; `Tracer` traces them, and `ProgramStore` loads and stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property, partial
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
from workers.programs.prompt_part import (
    PromptPart,
    joined_program,
    prompt_part,
    whole_program,
)
from workers.programs.row_tree import as_plain_values, check_row, from_plain_values, leaves_by_name
from workers.programs.step_latency import BatchLayout
from workers.programs.tracer import Tracer

T = TypeVar("T")


class Compiler:
    """Ahead-of-time compiler of one pipeline. Methods may run in any thread.

    Args:
        layout: how the slice partitions the work.
        executables: cache of compiled programs.
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
        """Lock that serializes the lookup of encodings."""

    def batch_layouts(self, sizes: Sequence[int], elastic: bool) -> list[BatchLayout]:
        """Return the batch layouts for these batch sizes, ascending.

        Args:
            elastic: include layouts that run several rows in parallel.
        """
        if elastic:
            self._layouts = layouts_by_batch(self.layout, sizes, self.arguments.stay_under)
        else:
            self._layouts = {BatchLayout(size): self.layout for size in sizes}
        return sorted(self._layouts)

    def layout_of(self, batch_layout: BatchLayout) -> Layout:
        """Return how the slice partitions a step of that batch layout."""
        return self._layouts.get(batch_layout, self.layout)

    def encoding(self, inputs: Mapping[str, np.ndarray]) -> Encoding:
        """Return the `encode` program for these inputs; sizes of one token bucket share it."""
        return Encoding(self._shared_encoding(shared_inputs(inputs)), size_leaves(inputs))

    def _shared_encoding(self, inputs: Mapping[str, np.ndarray]) -> SharedEncoding:
        with self._lock:
            key = signature(inputs)
            encoding = self._encodings.get(key)
            if encoding is None:
                self._encodings[key] = encoding = SharedEncoding(self.tracer, self.store, inputs)
            return encoding

    def modulations(self, step_program: StepProgram, values: Values, row: PyTree) -> Program | None:
        """Compile `Tracer.modulations`; None: the family has no precomputed modulations."""
        full_row, row = row, shared_row(row)
        name, arguments = str(step_program), (dict(values), row)
        traced = cache(lambda: self.tracer.modulations(step_program, values, row))
        if not self.store.fact(
            ("has conditions", name), arguments, lambda: bool(jax.tree.leaves(traced().out_info))
        ):
            return None
        with metrics.compiling("conditions"):
            program = self.store.program(("conditions", name), arguments, traced)
        return program if full_row is row else conditioning_any_size(program)

    def step(
        self, step_program: StepProgram, values: Values, batch_layout: BatchLayout, row: PyTree
    ) -> tuple[Program, frozenset[str]]:
        """Compile a denoising step (`Tracer.step`) for one of the `batch_layouts`.

        Also returns the names of the row's leaves that the step changes.

        Args:
            values: values of one step, for their names and shapes.
        """
        full_row, row = row, shared_row(row)
        name, arguments, layout = (
            str(step_program),
            (dict(values), row),
            self.layout_of(batch_layout),
        )
        traced = cache(
            lambda: self.tracer.step(step_program, values, row, batch_layout.size, layout)
        )
        with metrics.compiling("step"):
            program = self.store.program(
                ("step", name, *map(str, batch_layout)), arguments, traced, layout
            )
            changes = self.store.fact(
                ("changes", name), arguments, lambda: self.changes(traced(), row)
            )
        return program if full_row is row else stepping_any_size(program), changes

    def decode(self, row: PyTree) -> Program:
        """Compile `Tracer.decode`, which returns a finished row's pixels."""
        with metrics.compiling("decode"):
            return self.store.program(("decode",), row, lambda: self.tracer.decode(row))

    def preview(self, row: PyTree) -> Program:
        """Compile `Tracer.preview`, which returns an estimate's pixels."""
        with metrics.compiling("preview"):
            return self.store.program(("preview",), row, lambda: self.tracer.preview(row))

    def flops(self, step_program: StepProgram, values: Values, row: PyTree) -> float:
        """Return the FLOPs of one row's denoising step; arguments as for `step`. May trace."""
        row = shared_row(row)
        return self.store.fact(
            ("flops", str(step_program)),
            (dict(values), row),
            lambda: step_flops(self.pipeline, self.weights, step_program, values, row),
        )

    def recorded_compile_s(self, bucket: str) -> float | None:
        """Return the recorded compile seconds of the queue's bucket.

        None: its programs are not stored in files.
        """
        seconds: float | None = self.store.recall(self._compile_s(bucket))
        return seconds

    def record_compile_s(self, bucket: str, seconds: float) -> None:
        """Record the compile seconds of the bucket's programs, now stored in files."""
        self.store.fact(self._compile_s(bucket), {}, lambda: seconds)

    def _compile_s(self, bucket: str) -> tuple[str, ...]:
        """Return the name of the fact with a bucket's compile seconds, with the batch layouts."""
        return ("compile_s", bucket, *map(str, sorted(self._layouts)))

    def changes(self, traced: Traced, row: PyTree) -> frozenset[str]:
        """Return the leaves of a row that a step's program does not return unchanged."""
        names = list(leaves_by_name(row))
        program = traced.jaxpr.jaxpr
        first = len(jax.tree.leaves(self.arguments.abstract_weights))
        before = program.invars[first : first + len(names)]
        after = program.outvars[: len(names)]
        return frozenset(
            name for name, old, new in zip(names, before, after, strict=True) if new is not old
        )


class Once(Generic[T]):
    """Lazy value, computed by the first caller while others wait; recomputed after an error."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = Lock()
        self._made: list[T] = []

    def __call__(self) -> T:
        """Return the lazy value, computing it on the first call."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


class SharedEncoding:
    """Encode program for one kind of inputs, with the abstract row that it returns."""

    def __init__(
        self, tracer: Tracer, store: ProgramStore, inputs: Mapping[str, np.ndarray]
    ) -> None:
        traced = Once(lambda: tracer.encode(inputs))
        values = Once(
            lambda: store.fact(("row",), inputs, lambda: as_plain_values(traced().out_info))
        )
        self.row = Once(lambda: from_plain_values(values()))
        """Abstract row, available before the program is compiled."""
        self.program = Once(lambda: self._compiled(tracer, store, inputs, traced))
        """Compiled encode program: (weights, inputs, recall) → row."""

    def _compiled(
        self,
        tracer: Tracer,
        store: ProgramStore,
        inputs: Mapping[str, np.ndarray],
        traced: Callable[[], Traced],
    ) -> Program:
        """Compile the encode program, in two parts if seeds share one of them."""
        find = partial(store.fact, ("prompt part",), inputs)
        part = PromptPart(*find(lambda: tuple(prompt_part(traced(), inputs))))
        if not part.entries:
            return whole_program(store.program(("encode",), inputs, traced))

        def program(name: str, entries: Sequence[str]) -> Program:
            return store.program(
                ("encode", name), inputs, lambda: tracer.part(traced(), inputs, entries)
            )

        others = [name for name in self.row() if name not in part.entries]
        return joined_program(program("prompt", part.entries), program("rest", others), part)


class Encoding:
    """Encode program for inputs of one size, based on a program that other sizes share.

    Args:
        shared: encoding common to all sizes.
        size_specific: leaves of the row specific to this size.
    """

    def __init__(self, shared: SharedEncoding, size_specific: Mapping[str, PyTree]) -> None:
        self._shared = shared
        self._size_specific = size_specific

    @cached_property
    def row(self) -> PyTree:
        """Abstract row, available before the program is compiled."""
        row = self._shared.row()
        return (
            {**row, **jax.eval_shape(lambda: self._size_specific)} if self._size_specific else row
        )

    def program(self, row: PyTree) -> Program:
        """Compile the encode program: (weights, inputs, recall) → row (prompt_part.py).

        Raises: TypeError: its row differs in shape from the given one.
        """
        check_row("encode", self.row, row)
        with metrics.compiling("encode"):
            program = self._shared.program()
        return encoding_any_size(program, self) if self._size_specific else program


def signature(inputs: Mapping[str, np.ndarray]) -> Hashable:
    """Return a hashable key, equal for inputs that the same encode program accepts."""
    return tuple(sorted((name, x.shape, x.dtype.str) for name, x in inputs.items()))
