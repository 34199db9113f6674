"""A sketch: one request of one model as its programs' work, traced once and good for any layout."""

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

from models.interface.pipeline import Fields, Pipeline, Prepared
from models.nn.layers.adapter_bank import BANK
from models.parallel import jax_internals
from models.parallel.axis_rules import Axes, Layout
from workers.jaxpr.axis_tags import Tag
from workers.jaxpr.logical_mesh import axes_of
from workers.jaxpr.operations import Work, work_of
from workers.jaxpr.peak_memory import Live, peak
from workers.programs import warmup
from workers.programs.conditioning import first
from workers.programs.device_weights import network_name
from workers.programs.row_tree import axes_of as axes_of_row
from workers.programs.tracer import Tracer

ADAPTERS = "adapters"
"""Network that all banks count as: they lie on the device, wherever the networks do."""
SECOND = "second pass: "
"""Beginning of the names of the programs of hires fix's second pass."""


@dataclass(frozen=True)
class RowLeaf:
    """Array that lies on the devices, whatever runs."""

    shape: tuple[int, ...]
    itemsize: int
    axes: Axes

    @property
    def nbytes(self) -> int:
        """Bytes of one row's leaf."""
        return math.prod(self.shape) * self.itemsize

    def on_one(self, layout: Layout) -> int:
        """Bytes of it on each device."""
        split = layout.split(self.axes, self.shape)
        return self.nbytes // layout.devices(tuple(name for names in split for name in names))


@dataclass(frozen=True)
class Weight(RowLeaf):
    """Parameter of a network."""

    network: str


@dataclass(frozen=True)
class TracedProgram:
    """Traced program of the engine, for one row."""

    work: Work
    peak: Live
    """Temporaries at the fullest moment."""
    weights: tuple[Weight, ...]
    """Weights that it reads."""


@dataclass(frozen=True)
class Sketch:
    """Sketch of what one request of one size asks of a device."""

    model: str
    family: str
    weights: tuple[Weight, ...]
    row: tuple[RowLeaf, ...]
    encode: TracedProgram
    steps: Mapping[str, tuple[TracedProgram, int]]
    """Steps by phase: the program, and how many of them."""
    decode: TracedProgram
    conditions: Mapping[str, tuple[TracedProgram, int]]
    """Conditions of the phases that have them: what computes them for several steps, and how often.
    Their weights stay where they lie, so none is named."""
    conditions_bytes: int
    """Bytes of conditions that a row has while it is denoised."""
    prompts: int
    """Passes of a step: 2 where guidance is used."""
    second: Sketch | None = None
    """Sketch of hires fix's second pass, which is of another size; None: there is one pass."""

    def passes(self) -> Iterator[tuple[str, Sketch]]:
        """Yield the passes of the request, each with the beginning of its programs' names."""
        yield "", self
        if self.second is not None:
            yield SECOND, self.second

    @property
    def phase(self) -> str:
        """Phase that has most steps."""
        return max(self.steps, key=lambda name: self.steps[name][1])

    @property
    def heads(self) -> frozenset[int]:
        """Head counts of every attention among tokens."""
        return frozenset(
            dict(op.axes)["heads"]
            for program, _ in self.steps.values()
            for op in program.work.ops
            if op.kind == "attention" and {"heads", "tokens"} <= dict(op.axes).keys()
        )

    @property
    def tokens(self) -> int:
        """Length of the longest sequence that a step attends over; 0 where there is none."""
        axes = (dict(op.axes) for program, _ in self.steps.values() for op in program.work.ops)
        return max((sizes.get("tokens", 0) for sizes in axes), default=0)

    @property
    def networks(self) -> dict[str, int]:
        """Bytes of the weights by network, all devices together."""
        sizes: Counter[str] = Counter()
        for weight in self.weights:
            sizes[weight.network] += weight.nbytes
        return dict(sizes)


def sketch(pipeline: Pipeline, fields: Fields, logical: Layout) -> Sketch:
    """Sketch a request, traced and not compiled: seconds, whatever the size.

    Args:
        pipeline: as `models.loading.sources.SHAPES` makes it, its parameters placed by `logical`.
        logical: `workers.jaxpr.logical_mesh.logical_layout()`.

    Raises: models.interface.pipeline.RequestError: the model cannot make this; names the field.
    """
    tracer, weights = Tracer(pipeline, logical), _weights(pipeline)
    first, *others = [
        _sketch(pipeline, one, tracer, weights) for one in warmup.prepared_passes(pipeline, fields)
    ]
    return replace(first, second=others[0]) if others else first


def _sketch(
    pipeline: Pipeline, prepared: Prepared, tracer: Tracer, weights: tuple[Weight, ...]
) -> Sketch:
    encode = tracer.encode(prepared.inputs)
    row = encode.out_info
    conditions = _conditions(tracer, prepared, row)
    return Sketch(
        pipeline.spec.name,
        pipeline.spec.family,
        weights,
        _row(row),
        _program(encode, weights),
        _steps(tracer, prepared, row, weights),
        _program(tracer.decode(row), weights),
        {
            conditions_of(phase): (replace(_program(traced, weights), weights=()), runs)
            for phase, (traced, runs) in conditions.items()
        },
        max((_bytes(traced.out_info) for traced, _ in conditions.values()), default=0),
        prompts=row["prompt_embeds"].shape[0] if "prompt_embeds" in row else 1,
    )


def conditions_of(phase: str) -> str:
    """The name of the program that makes a phase's conditions."""
    return f"conditions of {phase}"


def _weights(pipeline: Pipeline) -> tuple[Weight, ...]:
    leaves, _ = jax.tree.flatten_with_path(pipeline.weights)
    return tuple(
        Weight(leaf.shape, np.dtype(leaf.dtype).itemsize, _axes(leaf), _network(path))
        for path, leaf in leaves
    )


def _network(path: Any) -> str:
    """Return the network that a leaf belongs to; of a bank's, `ADAPTERS`."""
    is_bank = any(getattr(part, "key", None) == BANK for part in path)
    return ADAPTERS if is_bank else network_name(path[0])


def _axes(leaf: Any) -> Axes:
    if leaf.sharding is None:  # the preview's few numbers, which nothing splits
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


def _conditions(tracer: Tracer, prepared: Prepared, row: Any) -> dict[str, tuple[Traced, int]]:
    """Conditions by phase, where the family has them; and how often they are computed."""
    values = {step.phase: step.values for step in prepared.steps}
    traced = {phase: tracer.conditions(phase, some, row) for phase, some in values.items()}
    chunks = {(step.phase, first(at)) for at, step in enumerate(prepared.steps)}
    runs = Counter(phase for phase, _ in chunks)
    return {
        str(phase): (one, runs[phase])
        for phase, one in traced.items()
        if jax.tree.leaves(one.out_info)
    }


def _steps(
    tracer: Tracer, prepared: Prepared, row: Any, weights: tuple[Weight, ...]
) -> dict[str, tuple[TracedProgram, int]]:
    counts = Counter(step.phase for step in prepared.steps)
    values = {step.phase: step.values for step in prepared.steps}
    return {
        str(phase): (
            _program(tracer.step(phase, values[phase], row), weights),
            count,
        )
        for phase, count in counts.items()
    }


def _program(traced: Traced, weights: tuple[Weight, ...]) -> TracedProgram:
    """A program's first arguments are the weights."""
    program = traced.jaxpr.jaxpr
    others = len(program.invars) - len(weights)
    tags = [Tag(dims=weight.axes) for weight in weights] + [Tag()] * others
    work, found = work_of(traced.jaxpr, tags)
    _, used = jax_internals.dce_jaxpr(program, [True] * len(program.outvars))
    return TracedProgram(work, peak(program, found), tuple(compress(weights, used)))
