"""The engine's own programs, compiled for devices that are not there, and read."""

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

from models.interface.pipeline import Fields, Pipeline, Prepared
from models.parallel.axis_rules import Layout
from workers.plan import hlo
from workers.plan.collectives import Interconnect, Traffic
from workers.plan.trace import SECOND, conditions_of
from workers.programs import warmup
from workers.programs.tracer import Tracer
from workers.slice.chips import CLOCK_HZ


@dataclass(frozen=True)
class CompiledProgram:
    """Compiled program, on one device."""

    name: str
    """`encode`, `decode`, or a phase's step."""
    compile_s: float
    argument_bytes: int
    """Weights that it reads, and its rows or inputs."""
    output_bytes: int
    temporary_bytes: int
    code_bytes: int
    flops_once: float
    """FLOPs as the compiler counts: a loop's body once."""
    bytes_once: float
    traffic: tuple[Traffic, ...]
    """Collectives by kind, loops counted."""
    cycles_s: float | None
    """The compiler's own estimate of its operations one after the other, loops counted."""
    refused: str = ""
    """Reason why it did not compile; the numbers are all 0 then."""

    @property
    def traffic_s(self) -> float:
        """Seconds of all exchange."""
        return sum(one.seconds for one in self.traffic)


def programs(
    pipeline: Pipeline, fields: Fields, layout: Layout, wires: Interconnect, slots: int
) -> Iterator[CompiledProgram]:
    """Yield each of the engine's programs for this request, the steps first.

    Args:
        pipeline: abstract, its parameters placed by `layout`.
        layout: over devices that a compiler is there for.
    """
    tracer, first = Tracer(pipeline, layout), True
    for prepared in warmup.prepared_passes(pipeline, fields):
        for program in _of_pass(tracer, prepared, layout, wires, slots):
            yield program if first else replace(program, name=SECOND + program.name)
        first = False


def _of_pass(
    tracer: Tracer, prepared: Prepared, layout: Layout, wires: Interconnect, slots: int
) -> Iterator[CompiledProgram]:
    encode = tracer.encode(prepared.inputs)
    row = encode.out_info
    values = {step.phase: step.values for step in prepared.steps}
    for phase, some in values.items():
        trace = lambda p=phase, v=some: tracer.step(p, v, row, slots)  # noqa: E731
        yield _program(str(phase), trace, layout, wires)
        traced = tracer.conditions(phase, some, row)
        if jax.tree.leaves(traced.out_info):
            yield _program(conditions_of(str(phase)), _already(traced), layout, wires)
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
        # Kernels that ask for the chip find it in the mesh.
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
    """Return that mesh, as one of devices."""
    if isinstance(mesh, AbstractMesh):
        raise TypeError("nothing can be compiled for devices that are abstract")
    return mesh


def refusal(error: str) -> str:
    """The compiler's numbers, out of its many lines."""
    used = re.search(r"Used (\S+) of (\S+) (\w+)\. Exceeded \w+ capacity by (\S+?)\.?\s", error)
    if used is None:
        return error.splitlines()[0]
    return f"uses {used[1]} of {used[2]} {used[3]}, {used[4]} too much"


def _read(
    name: str, seconds: float, compiled: Compiled, reading: hlo.Reading, wires: Interconnect
) -> CompiledProgram:
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    assert memory is not None  # of TPUs it never is
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
    """Empty where the compiler does not write its program down, as some do for tpu7x."""
    try:
        text = compiled.as_text()
    except (JaxRuntimeError, NotImplementedError):
        text = None
    return hlo.read(text, slices) if text else hlo.Reading(Counter(), 0)


def _traffic(collectives: Counter[hlo.Collective], wires: Interconnect) -> Iterator[Traffic]:
    kinds: dict[str, Traffic] = {}
    for one, count in collectives.items():
        if one.sent_bytes:
            entry = wires.sent(one.kind, one.sent_bytes, count, crosses=one.crosses)
            kinds[one.kind] = kinds[one.kind] + entry if one.kind in kinds else entry
    yield from kinds.values()
