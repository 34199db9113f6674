"""What `atelier plan` asks for → a search, or a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.nn.attention.select import kernel_for
from models.pipeline import Pipeline, RequestError
from models.sharding import Layout
from models.spec import ModelSpec
from workers import warmup
from workers.axes import Shape
from workers.plan import libtpu
from workers.plan.auto import choose
from workers.plan.compiled import Program, programs
from workers.plan.model import abstract, sketch_of
from workers.plan.plan import Plan
from workers.plan.reckon import Reckoning, reckon
from workers.plan.search import Found, search
from workers.plan.sketch import Sketch
from workers.plan.topology import PlanError, Topology
from workers.plan.traffic import Wires


@dataclass(frozen=True)
class Ask:
    """A model, a size and the devices to plan for."""

    model: str
    """A checkpoint's folder, file or hub id, or a name of `models.known.CHECKPOINTS`."""
    topology: Topology
    request: Mapping[str, Any]
    """Fields that differ from the model's defaults."""
    mesh: Literal["auto"] | Shape = "auto"
    dcn: Mapping[str, int] | None = None
    """Where "auto" has several slices or hosts: the axes between them."""
    dtype: str = "bfloat16"
    slots: int | None = None
    """Requests side by side; None: one for each part of `data`."""

    @property
    def slices(self) -> int:
        return math.prod((self.dcn or {}).values())


def sketched(ask: Ask) -> Sketch:
    """Raises: PlanError, RequestError: the model cannot make it; CheckpointError: no such model."""
    return sketch_of(ask.model, ask.dtype, ask.request, check=lambda spec: check(spec, ask.request))


def check(spec: ModelSpec, request: Mapping[str, Any]) -> None:
    """Raises: RequestError: a field that the model has not, or a size beyond its limits."""
    for name in request:
        if name not in spec.fields:
            raise RequestError(name, f"{spec.name} has no such field")
    limits = spec.limits
    for name, least, most in (
        ("width", limits.min_side_px, limits.max_side_px),
        ("height", limits.min_side_px, limits.max_side_px),
        ("num_frames", limits.min_frames, limits.max_frames),
    ):
        if name in request and not least <= request[name] <= most:
            raise RequestError(name, f"must be {least} to {most}, not {request[name]}")


def searched(ask: Ask, sketch: Sketch) -> Found:
    return search(sketch, ask.topology.chip, ask.topology.devices, dcn=ask.dcn)


def reckoned(ask: Ask, sketch: Sketch) -> Reckoning:
    """The layout that was asked for, or the best one.

    Raises: PlanError: it does not match the devices or the heads; of "auto", nothing fits.
    """
    chip, devices = ask.topology.chip, ask.topology.devices
    if ask.mesh == "auto":
        chosen = choose(sketch, chip, devices, dcn=ask.dcn)
        if ask.slots is None:
            return chosen
        return replace(reckon(sketch, chosen.shape, chip, ask.slots), why=chosen.why)
    try:
        shape = ask.mesh.over(devices, ask.slices, sketch.heads)
    except ValueError as error:
        raise PlanError(f"the mesh does not match {ask.topology.name}: {error}") from None
    return reckon(sketch, shape, chip, ask.slots or shape.size("data"))


def planned(
    ask: Ask, sketch: Sketch, *, compiles: bool, tell: Callable[[str], None] = lambda text: None
) -> Plan:
    """The reckoning, and for TPUs the programs that the real compiler makes of it.

    Args:
        compiles: whether to compile; without, and for GPUs, all is reckoned.
        tell: of each program, when it is compiled: some take minutes.

    Raises: PlanError: as `reckoned`; there is no compiler.
    """
    plan = Plan(sketch, ask.topology, ask.request, ask.dtype, reckoned(ask, sketch))
    if not compiles or ask.topology.chip.kind != "tpu":
        return plan
    libtpu.prepare(ask.topology, sketch.family)
    found: list[Program] = []
    for program in _programs(ask, plan.reckoning):
        tell(f"{program.name}: {program.refused or 'compiled'} ({program.compile_s:.0f} s)")
        found.append(program)
    return replace(plan, programs=tuple(found))


def _programs(ask: Ask, reckoning: Reckoning) -> Iterator[Program]:
    shape = reckoning.shape
    devices = libtpu.devices_of(ask.topology, math.prod(shape.dcn.values()))
    kernel = kernel_for(devices[0], ask.dtype)
    layout = Layout(libtpu.mesh_of(shape, devices), kernel)
    pipeline: Pipeline = abstract(ask.model, ask.dtype, layout.of_parameter)
    (fields,) = warmup.requests(pipeline.spec, [ask.request])
    return programs(pipeline, fields, layout, Wires.of(ask.topology.chip, shape), reckoning.slots)
