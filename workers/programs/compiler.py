"""Compiler: a pipeline's pure functions → programs for one mesh slice, from shapes alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jax.stages import Compiled, Traced
from jaxtyping import Array, Bool, Shaped

from models.interface.pipeline import Pipeline, PyTree, stack_rows
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout, Split
from models.parallel.trace_options import TraceOptions
from workers import metrics
from workers.programs import aot_key
from workers.programs.aot_cache import Executables, NothingKept
from workers.programs.batch_layouts import layouts_by_way
from workers.programs.bucket_programs import Program, Values
from workers.programs.compilation import building
from workers.programs.conditioning import STEPS, at_places
from workers.programs.device_weights import Weights
from workers.programs.flops import step_flops
from workers.programs.row_tree import leaves_by_name, places
from workers.programs.step_latency import Way
from workers.programs.unstack import stacks

T = TypeVar("T")


class Told(NamedTuple):
    """An array, as plain values."""

    shape: tuple[int, ...]
    dtype: str


class Compiler:
    """Ahead-of-time compilation; its methods may run in any thread.

    Args:
        layout: how the slice splits its work. Inputs lie whole on each of its devices, and rows but
            for what a step cache keeps; weights stay where they were loaded, and swapped networks
            come to where the layout has them. On a GPU stacks come apart (unstack.py).
        kept: where programs may be that need not be compiled.
        record: called with each activation that a trace splits.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        layout: Layout,
        kept: Executables | None = None,
        record: Callable[[Split], None] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.layout = layout
        self._record = record
        self._kept = kept or NothingKept()
        self.sharding = NamedSharding(layout.mesh, PartitionSpec())
        self._layouts: Mapping[Way, Layout] = {}
        places = weight_places(layout, pipeline.weights)
        self.weights = Weights(
            pipeline.spec.name, pipeline.weights, places, stacks(pipeline, layout)
        )
        self._abstract_weights = [
            self._abstract(leaf) if isinstance(leaf, tuple) else self._abstract_leaf(leaf, place)
            for leaf, place in zip(self.weights.common, places, strict=True)
        ]

    def encoding(self, inputs: Mapping[str, np.ndarray]) -> Encoding:
        """Of inputs of this kind."""
        return Encoding(self, inputs)

    def trace_encode(self, inputs: Mapping[str, np.ndarray]) -> Traced:
        def encode(weights: list[jax.Array], inputs: Mapping[str, jax.Array]) -> PyTree:
            row = self.pipeline.encode(self.weights.unflatten(weights), inputs)
            return jax.lax.with_sharding_constraint(row, self.places(row))

        jitted = self._jit(encode, None)
        return jitted.trace(self._abstract_weights, self._abstract(dict(inputs)))

    def ways(self, sizes: Sequence[int], elastic: bool) -> list[Way]:
        """How so many rows can be stepped: ascending.

        Args:
            elastic: by layouts too that have several rows side by side.
        """
        if elastic:
            self._layouts = layouts_by_way(self.layout, sizes, self._stays)
        else:
            self._layouts = {Way(size): self.layout for size in sizes}
        return sorted(self._layouts)

    def layout_of(self, way: Way) -> Layout:
        """How the slice splits a step of that way."""
        return self._layouts.get(way, self.layout)

    def flops(self, phase: StepProgram, values: Values, row: PyTree) -> float:
        """Operations of one row's step, as `step` has its arguments. May trace."""
        return self.fact(
            ("flops", str(phase)),
            (dict(values), row),
            lambda: step_flops(self.pipeline, self.weights, phase, values, row),
        )

    def conditions(self, phase: StepProgram, values: Values, row: PyTree) -> Program | None:
        """(weights, row, values [steps, …]) → conditions of that many steps (conditioning.py);
        None: the family has none.

        Args:
            values: one step's, for their names and shapes.
        """
        arguments = (dict(values), row)
        traced = cache(lambda: self.trace_conditions(phase, values, row))
        if not self.fact(
            ("has conditions", str(phase)),
            arguments,
            lambda: bool(jax.tree.leaves(traced().out_info)),
        ):
            return None
        with metrics.compiling("conditions"):
            return self.program(("conditions", str(phase)), arguments, traced)

    def trace_conditions(self, phase: StepProgram, values: Values, row: PyTree) -> Traced:
        def conditions(
            weights: list[jax.Array], row: PyTree, values: Mapping[str, jax.Array]
        ) -> PyTree:
            return self.pipeline.conditions(phase, self.weights.unflatten(weights), row, values)

        columns = {name: self._column(value, STEPS) for name, value in values.items()}
        jitted = self._jit(conditions, self.sharding)
        return jitted.trace(self._abstract_weights, self._abstract_row(row), columns)

    def step(
        self, phase: StepProgram, values: Values, way: Way, row: PyTree
    ) -> tuple[Program, frozenset[str]]:
        """(weights, rows, values [rows, …]) → (rows, finite [rows]), by one of the `ways`; and the
        names of the leaves of a row that it changes. In a family with conditions the program takes
        two arguments more: those of each row, and the places [rows] among them.

        Args:
            values: one step's, for their names and shapes.
        """
        name, arguments, layout = (
            ("step", str(phase), *map(str, way)),
            (dict(values), row),
            self.layout_of(way),
        )
        traced = cache(lambda: self.trace_step(phase, values, way, row))
        with metrics.compiling("step"):
            program = self.program(name, arguments, traced, layout)
            changes = self.fact(
                ("changes", str(phase)), arguments, lambda: self.changes(traced(), row)
            )
            return program, changes

    def changes(self, traced: Traced, row: PyTree) -> frozenset[str]:
        """Leaves of a row that a step's program does not simply give back."""
        names = list(leaves_by_name(row))
        program, first = traced.jaxpr.jaxpr, len(jax.tree.leaves(self._abstract_weights))
        before = program.invars[first : first + len(names)]
        after = program.outvars[: len(names)]
        return frozenset(
            name for name, old, new in zip(names, before, after, strict=True) if new is not old
        )

    def trace_step(self, phase: StepProgram, values: Values, way: Way, row: PyTree) -> Traced:
        def step(
            weights: list[jax.Array],
            rows: tuple[PyTree, ...],
            values: Mapping[str, jax.Array],
            *told: Any,
        ) -> tuple[tuple[PyTree, ...], jax.Array]:
            batch = stack_rows(list(rows))
            tree = self.weights.unflatten(weights)
            conditions = at_places(*told) if told else None
            after = self.pipeline.step(phase, tree, batch, values, conditions)
            return unstack_rows(after, rows, batch), finite_rows(after["latents"])

        row = self._abstract_row(row)
        columns = {name: self._column(value, way.size) for name, value in values.items()}
        to = (self.places(row),) * way.size, self.sharding
        jitted = self._jit(step, to, self.layout_of(way))
        told = self._abstract_conditions(phase, values, row, way.size)
        traced = jitted.trace(self._abstract_weights, (row,) * way.size, columns, *told)
        check_row(f"step {str(phase)!r}", traced.out_info[0][0], row)
        return traced

    def _abstract_conditions(
        self, phase: StepProgram, values: Values, row: PyTree, size: int
    ) -> tuple[Any, ...]:
        """A step's further arguments; none where the family has no conditions."""
        tree = self.trace_conditions(phase, values, row).out_info
        if not jax.tree.leaves(tree):
            return ()
        places = jax.ShapeDtypeStruct((size,), np.int32, sharding=self.sharding)
        return (self._abstract(tree),) * size, places

    def decode(self, row: PyTree) -> Program:
        with metrics.compiling("decode"):
            return self.program(("decode",), row, lambda: self.trace_decode(row))

    def trace_decode(self, row: PyTree) -> Traced:
        return self._trace_row(self.pipeline.decode, row)

    def preview(self, row: PyTree) -> Program:
        with metrics.compiling("preview"):
            return self.program(
                ("preview",), row, lambda: self._trace_row(self.pipeline.preview, row)
            )

    def program(
        self,
        name: tuple[str, ...],
        arguments: PyTree,
        trace: Callable[[], Traced],
        layout: Layout | None = None,
    ) -> Program:
        """One that was kept, or else what `trace` gives, compiled.

        Args:
            name: all that tells it from others of the same arguments.
            arguments: beside the weights.
            layout: that it is traced under; None: the slice's own.
        """
        layout = layout or self.layout
        return self._kept.program(
            lambda: self._key(name, arguments, layout),
            list(layout.mesh.devices.flat),
            lambda: self._build(trace),
        )

    def _build(self, trace: Callable[[], Traced]) -> Compiled:
        with building(), metrics.building(self.pipeline.spec.name):
            return trace().lower().compile()

    def known_compile_s(self, bucket: str) -> float | None:
        """Seconds that compiling the programs of the queue's bucket took once, where they lie in
        files now; None: they do not."""
        return self._kept.recall(lambda: self._key(self._compile_s(bucket), {}, self.layout))

    def keep_compile_s(self, bucket: str, seconds: float) -> None:
        """Note that the programs of the queue's bucket lie in files, and what they took."""
        self.fact(self._compile_s(bucket), {}, lambda: seconds)

    def _compile_s(self, bucket: str) -> tuple[str, ...]:
        """Names that fact: in other ways its steps are other programs."""
        return ("compile_s", bucket, *map(str, sorted(self._layouts)))

    def fact(self, name: tuple[str, ...], arguments: PyTree, find: Callable[[], T]) -> T:
        """Known from before, or found. Plain Python values."""
        return self._kept.fact(lambda: self._key(name, arguments, self.layout), find)

    def _key(self, name: tuple[str, ...], arguments: PyTree, layout: Layout) -> Mapping[str, Any]:
        return {
            "program": list(name),
            "arguments": aot_key.of_arguments(self._abstract(arguments)),
            "weights": self._weights_key,
            "layout": aot_key.of_layout(layout),
        }

    @cached_property
    def _weights_key(self) -> str:
        return aot_key.of_arguments(
            dict(zip(self.weights.names, self._abstract_weights, strict=True))
        )

    def _trace_row(self, function: Callable[..., jax.Array], row: PyTree) -> Traced:
        def pixels(weights: list[jax.Array], row: PyTree) -> jax.Array:
            return function(self.weights.unflatten(weights), row)

        jitted = self._jit(pixels, self.sharding)
        return jitted.trace(self._abstract_weights, self._abstract_row(row))

    def _jit(self, function: Callable[..., Any], to: PyTree, layout: Layout | None = None) -> Any:
        """Args: to: where what it returns goes; None: the function itself says so."""
        options = TraceOptions(layout or self.layout, record=self._record)

        @functools.wraps(function)
        def split(*args: Any) -> Any:
            with options.active():
                return function(*args)

        return jax.jit(split, out_shardings=to)

    def _column(self, value: np.ndarray | np.float32, size: int) -> jax.ShapeDtypeStruct:
        """One value of `size` rows."""
        shape = (size, *value.shape)
        return jax.ShapeDtypeStruct(shape, np.float32, sharding=self.sharding)

    def places(self, row: PyTree) -> PyTree:
        """Where each leaf of a row lies, whatever the way of its next step."""
        return places(row, self.layout)

    def _abstract_row(self, row: PyTree) -> PyTree:
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            self._abstract(row),
            self.places(row),
        )

    def _abstract(self, tree: PyTree) -> PyTree:
        return jax.tree.map(self._abstract_leaf, tree)

    def _stays(self, other: Layout) -> bool:
        pairs = zip(
            jax.tree.leaves(self.pipeline.weights),
            *(weight_places(one, self.pipeline.weights) for one in (self.layout, other)),
            strict=True,
        )
        return all(mine.is_equivalent_to(theirs, leaf.ndim) for leaf, mine, theirs in pairs)

    def _abstract_leaf(self, leaf: Any, place: Sharding | None = None) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None) or place or self.sharding
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)


class Encoding:
    """One kind of inputs: what it makes a row of, and the program that does."""

    def __init__(self, compiler: Compiler, inputs: Mapping[str, np.ndarray]) -> None:
        self._compiler = compiler
        self._inputs = inputs
        self._traced = cache(lambda: compiler.trace_encode(inputs))

    @cached_property
    def row(self) -> PyTree:
        """What a row looks like, long before the program is compiled."""
        told = self._compiler.fact(
            ("row",), dict(self._inputs), lambda: told_of_row(self._traced().out_info)
        )
        return row_as_told(told)

    def program(self, row: PyTree) -> Program:
        """(weights, inputs) → row. Raises: TypeError: of another shape than the one given."""
        check_row("encode", self.row, row)
        with metrics.compiling("encode"):
            return self._compiler.program(("encode",), dict(self._inputs), self._traced)


def told_of_row(row: PyTree) -> PyTree:
    """Abstract arrays as plain values."""
    return jax.tree.map(lambda leaf: Told(tuple(leaf.shape), np.dtype(leaf.dtype).name), row)


def row_as_told(told: PyTree) -> PyTree:
    """Such values as abstract arrays."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        told,
        is_leaf=lambda leaf: isinstance(leaf, Told),
    )


def weight_places(layout: Layout, weights: PyTree) -> list[Sharding]:
    """Where a layout has each array; what names no axes lies whole on each device."""
    whole = NamedSharding(layout.mesh, PartitionSpec())

    def place(leaf: Any) -> Any:
        if isinstance(leaf, nnx.Variable):
            return leaf.replace(layout.of_parameter("", leaf))
        return whole

    tree = jax.tree.map(place, weights, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return jax.tree.leaves(tree)


def signature(inputs: Mapping[str, np.ndarray]) -> Hashable:
    """Equal for inputs that the same program encodes."""
    return tuple(sorted((name, x.shape, x.dtype.str) for name, x in inputs.items()))


def unstack_rows(after: PyTree, rows: Sequence[PyTree], batch: PyTree) -> tuple[PyTree, ...]:
    """A batch after a step → its rows. What the step left alone is each row's own, as it came in.

    Args:
        rows: as they were before the step.
        batch: the same, stacked.
    """
    leaves, tree = jax.tree.flatten(after)
    places = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(batch))}

    def row_after(number: int, row: PyTree) -> PyTree:
        own = jax.tree.leaves(row)
        return jax.tree.unflatten(
            tree,
            [own[places[id(leaf)]] if id(leaf) in places else leaf[number] for leaf in leaves],
        )

    return tuple(row_after(number, row) for number, row in enumerate(rows))


def finite_rows(latents: Shaped[Array, "batch ..."]) -> Bool[Array, " batch"]:
    """Which rows hold neither NaN nor infinity."""
    return jnp.isfinite(latents).all(axis=tuple(range(1, latents.ndim)))


def check_row(program: str, row: PyTree, expected: PyTree) -> None:
    """Raises: TypeError: the program's row could not go on where the others do."""
    found, wanted = (
        {name: (leaf.shape, leaf.dtype) for name, leaf in leaves_by_name(tree).items()}
        for tree in (row, expected)
    )
    wrong = [key for key in found | wanted if found.get(key) != wanted.get(key)]
    if wrong:
        details = "; ".join(f"{k}: {found.get(k)} instead of {wanted.get(k)}" for k in wrong)
        raise TypeError(f"{program} returns a row of another shape: {details}")
