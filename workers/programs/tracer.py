"""Tracer: turns a pipeline's pure functions into traced programs for a slice, from shapes only."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Traced, Wrapped
from jaxtyping import Array, Shaped, UInt32

from models.interface.finite import CheckedOutput, decode_checked
from models.interface.pipeline import Pipeline, PyTree, stack_rows
from models.interface.step_program import StepProgram
from models.interface.token_buckets import shared_row
from models.parallel import jax_internals
from models.parallel.axis_rules import Layout, Split
from models.parallel.trace_options import TraceOptions
from workers.programs.abstract_arguments import AbstractArguments
from workers.programs.bucket_programs import Values
from workers.programs.precomputed_modulations import STEPS, gather_steps
from workers.programs.row_tree import check_row


class Tracer:
    """Tracer of each program of a pipeline. Methods may run in any thread.

    Args:
        layout: how the slice partitions the work.
        record: called with each activation that a trace splits.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        layout: Layout,
        record: Callable[[Split], None] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.layout = layout
        self.arguments = AbstractArguments(pipeline, layout)
        self._weights = self.arguments.weights
        self._abstract_weights = self.arguments.abstract_weights
        self._record = record

    def encode(self, inputs: Mapping[str, np.ndarray]) -> Traced:
        """Trace (weights, inputs) → row, for inputs of this kind."""

        def encode(weights: list[jax.Array], inputs: Mapping[str, jax.Array]) -> PyTree:
            row = self.pipeline.encode(self._weights.unflatten(weights), inputs)
            return jax.lax.with_sharding_constraint(row, self.arguments.row_shardings(row))

        jitted = self._jit(encode, None)
        return jitted.trace(self._abstract_weights, self.arguments.of(dict(inputs)))

    def part(
        self, encode: Traced, inputs: Mapping[str, np.ndarray], entries: Collection[str]
    ) -> Traced:
        """Trace (weights, inputs) → these entries of the row of a traced `encode`.

        Weights and inputs that only other entries depend on are not arguments of the program.
        """
        whole = jax_internals.jaxpr_as_fun(encode.jaxpr)
        tree = jax.tree.structure(encode.out_info)

        def part(weights: list[jax.Array], inputs: Mapping[str, jax.Array]) -> PyTree:
            row = jax.tree.unflatten(tree, whole(*jax.tree.leaves((weights, inputs))))
            return {name: row[name] for name in entries}

        return jax.jit(part).trace(self._abstract_weights, self.arguments.of(dict(inputs)))

    def modulations(self, step_program: StepProgram, values: Values, row: PyTree) -> Traced:
        """Trace (weights, row, values [steps, …]) → modulations [steps, …] (conditioning.py).

        The result is a tree without leaves if the family has none.

        Args:
            values: values of one step, for their names and shapes.
        """

        def modulations(
            weights: list[jax.Array], row: PyTree, values: Mapping[str, jax.Array]
        ) -> PyTree:
            return self.pipeline.modulations(
                step_program, self._weights.unflatten(weights), row, values
            )

        jitted = self._jit(modulations, self.arguments.replicated)
        columns = self.arguments.columns(values, STEPS)
        return jitted.trace(self._abstract_weights, self.arguments.row(shared_row(row)), columns)

    def step(
        self,
        step_program: StepProgram,
        values: Values,
        row: PyTree,
        size: int = 1,
        layout: Layout | None = None,
    ) -> Traced:
        """Trace (weights, rows, values [rows, …]) → (rows, `row_digests` [rows]).

        Rows of a token bucket have the bucket's padded shapes. With precomputed modulations, two
        arguments follow: each row's modulations, and the index [rows] of its step's.

        Args:
            values: values of one step, for their names and shapes.
            size: number of rows.
            layout: replaces the slice's own layout.
        """

        def step(
            weights: list[jax.Array],
            rows: tuple[PyTree, ...],
            values: Mapping[str, jax.Array],
            *conditioning: Any,
        ) -> tuple[tuple[PyTree, ...], jax.Array]:
            batch = stack_rows(list(rows))
            tree = self._weights.unflatten(weights)
            modulations = gather_steps(*conditioning) if conditioning else None
            after = self.pipeline.step(step_program, tree, batch, values, modulations)
            return unstack_rows(after, rows, batch), row_digests(after["latents"])

        row = self.arguments.row(shared_row(row))
        columns = self.arguments.columns(values, size)
        to = (self.arguments.row_shardings(row),) * size, self.arguments.replicated
        conditioning = self._conditioning(step_program, values, row, size)
        jitted = self._jit(step, to, layout)
        traced = jitted.trace(self._abstract_weights, (row,) * size, columns, *conditioning)
        check_row(f"step {str(step_program)!r}", traced.out_info[0][0], row)
        return traced

    def decode(self, row: PyTree) -> Traced:
        """Trace (weights, row) → the finished row's pixels, with sound if any."""
        return self._pixels(self.pipeline.decode, row)

    def preview(self, row: PyTree) -> Traced:
        """Trace (weights, row) → pixels of an intermediate estimate."""
        return self._pixels(self.pipeline.preview, row)

    def _conditioning(
        self, step_program: StepProgram, values: Values, row: PyTree, size: int
    ) -> tuple[Any, ...]:
        """Return a step's modulation arguments; empty if the family has no modulations."""
        tree = self.modulations(step_program, values, row).out_info
        if not jax.tree.leaves(tree):
            return ()
        indices = jax.ShapeDtypeStruct((size,), np.int32, sharding=self.arguments.replicated)
        return (self.arguments.of(tree),) * size, indices

    def _pixels(self, function: Callable[..., PyTree], row: PyTree) -> Traced:
        def pixels(weights: list[jax.Array], row: PyTree) -> CheckedOutput:
            return decode_checked(function, self._weights.unflatten(weights), row)

        jitted = self._jit(pixels, self.arguments.replicated)
        return jitted.trace(self._abstract_weights, self.arguments.row(row))

    def _jit(
        self, function: Callable[..., Any], to: PyTree, layout: Layout | None = None
    ) -> Wrapped:
        """Jit a function with the trace's options. Args: to: output shardings; None: unset."""
        options = TraceOptions(layout or self.layout, record=self._record)

        @functools.wraps(function)
        def split(*args: Any) -> Any:
            with options.active():
                return function(*args)

        return jax.jit(split, out_shardings=to)


def unstack_rows(after: PyTree, rows: Sequence[PyTree], batch: PyTree) -> tuple[PyTree, ...]:
    """Split a batch after a step into rows; leaves the step did not change keep each row's array.

    Args:
        rows: the rows before the step.
        batch: the same rows, stacked.
    """
    leaves, tree = jax.tree.flatten(after)
    indices = {id(leaf): index for index, leaf in enumerate(jax.tree.leaves(batch))}

    def row_after(number: int, row: PyTree) -> PyTree:
        row_leaves = jax.tree.leaves(row)
        return jax.tree.unflatten(
            tree,
            [
                row_leaves[indices[id(leaf)]] if id(leaf) in indices else leaf[number]
                for leaf in leaves
            ],
        )

    return tuple(row_after(number, row) for number, row in enumerate(rows))


def row_digests(latents: Shaped[Array, "batch ..."]) -> UInt32[Array, " batch"]:
    """Return a 32-bit digest of each row's bits; 0 if a row contains NaN or infinity.

    A sum of integers does not depend on the layout. The digest reads the latents as stored, so that
    equal latents of different programs have equal digests.

    Source: Appleby, MurmurHash3, `fmix32`, for the mixing of each element with its position.
    """
    axes = tuple(range(1, latents.ndim))
    stored = jax.lax.optimization_barrier(latents)
    unsigned = jnp.dtype(f"uint{8 * stored.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(stored, unsigned).astype(jnp.uint32)
    positions = jax.lax.iota(jnp.uint32, math.prod(bits.shape[1:])).reshape(bits.shape[1:])
    digests = mixed(bits ^ mixed(positions)).sum(axis=axes, dtype=jnp.uint32)
    is_finite = jnp.isfinite(stored).all(axis=axes)
    return jnp.where(is_finite, jnp.maximum(digests, np.uint32(1)), np.uint32(0))


def mixed(bits: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Return a bijection of 32-bit integers in which each bit depends on all others."""
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> np.uint32(16))
