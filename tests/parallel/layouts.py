"""Layouts on virtual devices, and an image drawn by one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from models.interface.pipeline import Pipeline, Prepared, PyTree
from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import Layout
from tests.parallel.place import placed
from workers.programs.bucket_programs import Program
from workers.programs.compiler import Compiler
from workers.programs.conditioning import computed, place
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape


def layout(ring: int | None = None, **sizes: int) -> Layout:
    """A layout over as many of the virtual devices as its axes take."""
    shape = MeshShape(sizes, {}, ring)
    whole = shape.over(shape.devices)
    return Layout(make_mesh(whole, jax.devices()[: whole.devices]), xla_kernel)


def denoise(pipeline: Pipeline, prepared: Prepared, layout: Layout) -> Iterator[PyTree]:
    """The row after encoding, after each step, and the pixels, by the engine's own programs.

    Where the layout splits rows, the row has as many neighbours that are like it.
    """
    compiler = Compiler(placed(pipeline, layout), layout)
    weights = compiler.weights.common
    encode = compiler.tracer.encode(prepared.inputs)
    inputs = jax.device_put(dict(prepared.inputs), compiler.arguments.replicated)
    row = encode.lower().compile()(weights, inputs)
    yield row
    rows = layout.mesh.shape["data"]
    programs: dict[str, Any] = {}
    told: dict[str, Any] = {}
    way = compiler.batch_layouts([rows], elastic=False)[-1]
    for at, step in enumerate(prepared.steps):
        values = {
            name: np.stack([np.asarray(value, np.float32)] * rows)
            for name, value in step.values.items()
        }
        values = jax.device_put(values, compiler.arguments.replicated)
        if step.phase not in programs:
            programs[step.phase], _ = compiler.step(step.phase, step.values, way, row)
            told[step.phase] = compiler.conditions(step.phase, step.values, row)
        more = conditions(told[step.phase], weights, [(row, prepared)] * rows, at)
        (row, *_), finite = programs[step.phase](weights, (row,) * rows, values, *more)
        assert finite.all()
        yield row
    yield compiler.decode(row)(weights, row).decoded


def conditions(
    program: Program | None, weights: Any, rows: Sequence[tuple[PyTree, Prepared]], at: int
) -> tuple[Any, ...]:
    """What a step's program is given besides, where the family has conditions."""
    if program is None:
        return ()
    trees = tuple(computed(program, weights, row, one.steps, at).tree for row, one in rows)
    return trees, np.full(len(rows), place(at), np.int32)
