"""The engine's programs, compiled for devices that this machine lacks, with their costs."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import jax
from jax.errors import JaxRuntimeError
from jax.sharding import AbstractMesh, Mesh
from jax.stages import Compiled, Traced

from models.interface.pipeline import Fields, Pipeline, PreparedRow
from models.parallel.axis_rules import Layout
from workers.plan import hlo
from workers.plan.collectives import Interconnect, Traffic
from workers.plan.trace import SECOND, modulations_of
from workers.programs import warmup
from workers.programs.tracer import Tracer
from workers.slice.chips import CLOCK_HZ


@dataclass(frozen=True)
class CompiledProgram:
    """Compiler's costs of a compiled program on one device."""

    name: str
    """`encode`, `decode`, or a phase's step."""
    compile_s: float
    argument_bytes: int
    """Weights that it reads, and its rows or inputs."""
    output_bytes: int
    temporary_bytes: int
    code_bytes: int
    flops_once: float
    """FLOPs by the compiler, which counts a loop's body once."""
    bytes_once: float
    traffic: tuple[Traffic, ...]
    """Collectives by kind, with loop trips counted."""
    cycles_s: float | None
    """The compiler's estimate of its operations in sequence, with loop trips counted."""
    refused: str = ""
    """Reason why it did not compile; the numbers are then 0."""

    @property
    def traffic_s(self) -> float:
        """Seconds of all collectives of the compiled program."""
        return sum(item.seconds for item in self.traffic)


def programs(
    pipeline: Pipeline, fields: Fields, layout: Layout, wires: Interconnect, slots: int
) -> Iterator[CompiledProgram]:
    """Yield each of the engine's programs for this request, steps first.

    Args:
        pipeline: abstract, with parameters placed by `layout`.
        layout: over devices that a compiler supports.
    """
    tracer, first = Tracer(pipeline, layout), True
    for prepared in warmup.prepared_passes(pipeline, fields):
        for program in _of_pass(tracer, prepared, layout, wires, slots):
            yield program if first else replace(program, name=SECOND + program.name)
        first = False


def _of_pass(
    tracer: Tracer, prepared: PreparedRow, layout: Layout, wires: Interconnect, slots: int
) -> Iterator[CompiledProgram]:
    encode = tracer.encode(prepared.inputs)
    row = encode.out_info
    values = {step.program: step.values for step in prepared.steps}
    for step_program, step_values in values.items():
        trace = lambda p=step_program, v=step_values: tracer.step(p, v, row, slots)  # noqa: E731
        yield _program(str(step_program), trace, layout, wires)
        traced = tracer.modulations(step_program, step_values, row)
        if jax.tree.leaves(traced.out_info):
            yield _program(modulations_of(str(step_program)), _already(traced), layout, wires)
    yield _program("encode", _already(encode), layout, wires)
    yield _program("decode", lambda: tracer.decode(row), layout, wires)


def _already(traced: Traced) -> Callable[[], Traced]:
    return lambda: traced


def _program(
    name: str, trace: Callable[[], Traced], layout: Layout, wires: Interconnect
) -> CompiledProgram:
    mesh = concrete(layout.mesh)
    started = time.perf_counter()
    try:
        # Kernels read the chip's kind from this mesh.
        with jax.set_mesh(mesh):
            compiled = trace().lower().compile()
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        seconds = time.perf_counter() - started
        return CompiledProgram(name, seconds, 0, 0, 0, 0, 0, 0, (), None, refusal(str(error)))
    slices = [getattr(device, "slice_index", 0) for device in mesh.devices.flat]
    reading = _text(compiled, slices)
    return _read(name, time.perf_counter() - started, compiled, reading, wires)


def concrete(mesh: Mesh | AbstractMesh) -> Mesh:
    """Return a mesh unchanged; raise TypeError if its devices are abstract."""
    if isinstance(mesh, AbstractMesh):
        raise TypeError("nothing can be compiled for devices that are abstract")
    return mesh


def refusal(error: str) -> str:
    """Extract the memory numbers from the compiler's out-of-memory error."""
    used = re.search(r"Used (\S+) of (\S+) (\w+)\. Exceeded \w+ capacity by (\S+?)\.?\s", error)
    if used is None:
        return error.splitlines()[0]
    return f"uses {used[1]} of {used[2]} {used[3]}, {used[4]} too much"


def _read(
    name: str, seconds: float, compiled: Compiled, reading: hlo.Reading, wires: Interconnect
) -> CompiledProgram:
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    assert memory is not None  # never None for TPUs
    return CompiledProgram(
        name,
        seconds,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        cost.get("flops", 0.0),
        cost.get("bytes accessed", 0.0),
        tuple(_traffic(reading.collectives, wires)),
        reading.cycles / CLOCK_HZ[wires.chip.name] if reading.cycles else None,
    )


def _text(compiled: Compiled, slices: Sequence[int]) -> hlo.Reading:
    """Parse a compiled program's HLO; empty if the compiler cannot print it, as some for tpu7x."""
    try:
        text = compiled.as_text()
    except (JaxRuntimeError, NotImplementedError):
        text = None
    return hlo.read(text, slices) if text else hlo.Reading(Counter(), 0)


def _traffic(collectives: Counter[hlo.Collective], wires: Interconnect) -> Iterator[Traffic]:
    kinds: dict[str, Traffic] = {}
    for collective, count in collectives.items():
        if collective.sent_bytes:
            entry = wires.sent(
                collective.kind, collective.sent_bytes, count, crosses=collective.crosses
            )
            kinds[collective.kind] = (
                kinds[collective.kind] + entry if collective.kind in kinds else entry
            )
    yield from kinds.values()
