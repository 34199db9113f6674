"""Sketch of a request: its programs' operations, traced once, usable for any layout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import jax
import numpy as np
from jax.stages import Traced

from models.interface.pipeline import Fields, Pipeline, PreparedRow
from models.nn.layers.adapter_bank import BANK
from models.parallel import jax_internals
from models.parallel.axis_rules import Axes, Layout
from workers.jaxpr.axis_tags import Tag
from workers.jaxpr.logical_mesh import axes_of
from workers.jaxpr.operations import Work, work_of
from workers.jaxpr.peak_memory import Live, peak
from workers.programs import warmup
from workers.programs.device_weights import network_name
from workers.programs.precomputed_modulations import group_start
from workers.programs.row_tree import axes_of as axes_of_row
from workers.programs.tracer import Tracer

ADAPTERS = "adapters"
"""Network name of all adapter banks, which are always on the device."""
SECOND = "second pass: "
"""Prefix of the program names of hires fix's second pass."""


@dataclass(frozen=True)
class RowLeaf:
    """Array of a row's state in a traced program, with its logical axes."""

    shape: tuple[int, ...]
    itemsize: int
    axes: Axes

    @property
    def nbytes(self) -> int:
        """Bytes of the array, over all devices."""
        return math.prod(self.shape) * self.itemsize

    def on_one(self, layout: Layout) -> int:
        """Return the bytes of the array on each device."""
        split = layout.split(self.axes, self.shape)
        return self.nbytes // layout.devices(tuple(name for names in split for name in names))


@dataclass(frozen=True)
class Weight(RowLeaf):
    """Parameter of a network in a traced program, with its logical axes."""

    network: str


@dataclass(frozen=True)
class TracedProgram:
    """Program of the engine, traced for one row."""

    work: Work
    peak: Live
    """Temporaries at the peak."""
    weights: tuple[Weight, ...]
    """Weights that it reads."""


@dataclass(frozen=True)
class Sketch:
    """Operations, weights and memory of one request of one size, independent of devices."""

    model: str
    family: str
    weights: tuple[Weight, ...]
    row: tuple[RowLeaf, ...]
    encode: TracedProgram
    steps: Mapping[str, tuple[TracedProgram, int]]
    """Steps by step kind: the program, and its number of runs."""
    decode: TracedProgram
    modulations: Mapping[str, tuple[TracedProgram, int]]
    """Modulations by step kind: the program that computes them for several steps, and its runs.
    Their weights stay in place, so none are listed."""
    modulations_bytes: int
    """Bytes of a row's modulations during denoising."""
    prompts: int
    """Passes of a step: 2 with guidance."""
    second_pass: Sketch | None = None
    """Sketch of hires fix's second pass, which has another size; None: no second pass."""

    def passes(self) -> Iterator[tuple[str, Sketch]]:
        """Yield the passes of the request, each with the prefix of its programs' names."""
        yield "", self
        if self.second_pass is not None:
            yield SECOND, self.second_pass

    @property
    def main_step_kind(self) -> str:
        """Step kind with the most steps of the request."""
        return max(self.steps, key=lambda name: self.steps[name][1])

    @property
    def heads(self) -> frozenset[int]:
        """Head counts of all self-attention layers of the model."""
        return frozenset(
            dict(op.axes)["heads"]
            for program, _ in self.steps.values()
            for op in program.work.ops
            if op.kind == "attention" and {"heads", "tokens"} <= dict(op.axes).keys()
        )

    @property
    def tokens(self) -> int:
        """Length of the longest sequence that a step attends over, or 0."""
        axes = (dict(op.axes) for program, _ in self.steps.values() for op in program.work.ops)
        return max((sizes.get("tokens", 0) for sizes in axes), default=0)

    @property
    def networks(self) -> dict[str, int]:
        """Bytes of the weights by network, over all devices."""
        sizes: Counter[str] = Counter()
        for weight in self.weights:
            sizes[weight.network] += weight.nbytes
        return dict(sizes)


def sketch(pipeline: Pipeline, fields: Fields, logical: Layout) -> Sketch:
    """Trace a request without compiling it; takes seconds, regardless of the size.

    Args:
        pipeline: as created by `models.loading.sources.SHAPES`, with parameters placed by
            `logical`.
        logical: `workers.jaxpr.logical_mesh.logical_layout()`.

    Raises: models.spec.request.RequestError: the model rejects the request; names the field.
    """
    tracer, weights = Tracer(pipeline, logical), _weights(pipeline)
    first, *others = [
        _sketch(pipeline, prepared, tracer, weights)
        for prepared in warmup.prepared_passes(pipeline, fields)
    ]
    return replace(first, second_pass=others[0]) if others else first


def _sketch(
    pipeline: Pipeline, prepared: PreparedRow, tracer: Tracer, weights: tuple[Weight, ...]
) -> Sketch:
    encode = tracer.encode(prepared.inputs)
    row = encode.out_info
    modulations = _modulations(tracer, prepared, row)
    return Sketch(
        pipeline.spec.name,
        pipeline.spec.family,
        weights,
        _row(row),
        _program(encode, weights),
        _steps(tracer, prepared, row, weights),
        _program(tracer.decode(row), weights),
        {
            modulations_of(step_program): (replace(_program(traced, weights), weights=()), runs)
            for step_program, (traced, runs) in modulations.items()
        },
        max((_bytes(traced.out_info) for traced, _ in modulations.values()), default=0),
        prompts=row["prompt_embeds"].shape[0] if "prompt_embeds" in row else 1,
    )


def modulations_of(step_kind: str) -> str:
    """Return the name of the program that computes a step kind's modulations."""
    return f"conditions of {step_kind}"


def _weights(pipeline: Pipeline) -> tuple[Weight, ...]:
    leaves, _ = jax.tree.flatten_with_path(pipeline.weights)
    return tuple(
        Weight(leaf.shape, np.dtype(leaf.dtype).itemsize, _axes(leaf), _network(path))
        for path, leaf in leaves
    )


def _network(path: Any) -> str:
    """Return the network that a leaf belongs to, or `ADAPTERS` for a bank."""
    is_bank = any(getattr(part, "key", None) == BANK for part in path)
    return ADAPTERS if is_bank else network_name(path[0])


def _axes(leaf: Any) -> Axes:
    if leaf.sharding is None:  # the preview's small map, which is not split
        return (None,) * len(leaf.shape)
    return axes_of(leaf.sharding.spec, len(leaf.shape))


def _row(row: Any) -> tuple[RowLeaf, ...]:
    tree: Any = jax.tree.structure(row)
    return tuple(
        RowLeaf(leaf.shape, leaf.dtype.itemsize, names)
        for leaf, names in zip(
            jax.tree.leaves(row), tree.flatten_up_to(axes_of_row(row)), strict=True
        )
    )


def _bytes(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _modulations(tracer: Tracer, prepared: PreparedRow, row: Any) -> dict[str, tuple[Traced, int]]:
    """Return the traced modulation programs, with their runs, of step kinds that have one."""
    values = {step.program: step.values for step in prepared.steps}
    traced = {
        step_program: tracer.modulations(step_program, step_values, row)
        for step_program, step_values in values.items()
    }
    chunks = {(step.program, group_start(index)) for index, step in enumerate(prepared.steps)}
    runs = Counter(step_program for step_program, _ in chunks)
    return {
        str(step_program): (program, runs[step_program])
        for step_program, program in traced.items()
        if jax.tree.leaves(program.out_info)
    }


def _steps(
    tracer: Tracer, prepared: PreparedRow, row: Any, weights: tuple[Weight, ...]
) -> dict[str, tuple[TracedProgram, int]]:
    counts = Counter(step.program for step in prepared.steps)
    values = {step.program: step.values for step in prepared.steps}
    return {
        str(step_program): (
            _program(tracer.step(step_program, values[step_program], row), weights),
            count,
        )
        for step_program, count in counts.items()
    }


def _program(traced: Traced, weights: tuple[Weight, ...]) -> TracedProgram:
    """Analyze a traced program, whose first arguments are the weights."""
    program = traced.jaxpr.jaxpr
    others = len(program.invars) - len(weights)
    tags = [Tag(dims=weight.axes) for weight in weights] + [Tag()] * others
    work, tags_by_var = work_of(traced.jaxpr, tags)
    _, used = jax_internals.dce_jaxpr(program, [True] * len(program.outvars))
    return TracedProgram(work, peak(program, tags_by_var), tuple(compress(weights, used)))
