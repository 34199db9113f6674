"""Layouts on virtual devices, and denoising of one image under a layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from models.interface.pipeline import Pipeline, PreparedRow, PyTree
from models.interface.step_program import StepProgram
from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import Layout
from tests.parallel.placed_pipeline import placed
from workers.programs.bucket_programs import Program
from workers.programs.compiler import Compiler
from workers.programs.precomputed_modulations import index_in_group, precompute
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape


def layout(ring: int | None = None, **sizes: int) -> Layout:
    """Layout over as many virtual devices as its axes need."""
    shape = MeshShape(sizes, {}, ring)
    mesh = shape.over(shape.devices)
    return Layout(make_mesh(mesh, jax.devices()[: mesh.devices]), xla_kernel)


def denoise(pipeline: Pipeline, prepared: PreparedRow, layout: Layout) -> Iterator[PyTree]:
    """Yield the encoded row, the row after each step, and the pixels, with the engine's programs.

    A layout that splits rows gets identical copies of the row.
    """
    compiler = Compiler(placed(pipeline, layout), layout)
    weights = compiler.weights.common
    encode = compiler.tracer.encode(prepared.inputs)
    inputs = jax.device_put(dict(prepared.inputs), compiler.arguments.replicated)
    row = encode.lower().compile()(weights, inputs)
    yield row
    rows = layout.mesh.shape["data"]
    programs: dict[StepProgram, Any] = {}
    modulations: dict[StepProgram, Any] = {}
    batch_layout = compiler.batch_layouts([rows], elastic=False)[-1]
    for at, step in enumerate(prepared.steps):
        values = {
            name: np.stack([np.asarray(value, np.float32)] * rows)
            for name, value in step.values.items()
        }
        values = jax.device_put(values, compiler.arguments.replicated)
        if step.program not in programs:
            programs[step.program], _ = compiler.step(step.program, step.values, batch_layout, row)
            modulations[step.program] = compiler.modulations(step.program, step.values, row)
        extra = modulation_arguments(
            modulations[step.program], weights, [(row, prepared)] * rows, at
        )
        (row, *_), finite = programs[step.program](weights, (row,) * rows, values, *extra)
        assert finite.all()
        yield row
    yield compiler.decode(row)(weights, row).decoded


def modulation_arguments(
    program: Program | None, weights: Any, rows: Sequence[tuple[PyTree, PreparedRow]], at: int
) -> tuple[Any, ...]:
    """Extra arguments of a step's program: the rows' modulations, if the family has them."""
    if program is None:
        return ()
    trees = tuple(
        precompute(program, weights, row, prepared.steps, at).tree for row, prepared in rows
    )
    return trees, np.full(len(rows), index_in_group(at), np.int32)
