"""Entry point of `atelier plan`: from its options to a search or a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.interface.pipeline import Pipeline
from models.nn.kernels.int8_matmul import eight_bit_for
from models.nn.kernels.select import kernel_for
from models.parallel.axis_rules import Layout
from models.spec.hires import FIELD as HIRES
from models.spec.hires import type_errors
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EightBit
from models.spec.request import RequestError
from models.vae.config import Tiling
from models.weights.quantize import Rounding
from service.settings.models import TilingSettings
from workers.plan import tpu_compiler
from workers.plan.collectives import Interconnect
from workers.plan.estimate import Estimate, estimate
from workers.plan.lowered import CompiledProgram, programs
from workers.plan.model import abstract, sketch_of
from workers.plan.offload import Residency, residencies
from workers.plan.plan import Plan
from workers.plan.search import NothingFits, SearchResults, choose, search
from workers.plan.trace import Sketch
from workers.programs import warmup
from workers.slice.mesh_shape import MeshShape
from workers.slice.topology import PlanError, Topology


@dataclass(frozen=True)
class PlanRequest:
    """Model, size and devices to plan for."""

    model: str
    """Folder, file or hub id of a checkpoint, or a name of `models.published.CHECKPOINTS`."""
    topology: Topology
    request: Mapping[str, Any]
    """Fields that differ from the model's defaults."""
    mesh: Literal["auto"] | MeshShape = "auto"
    dcn: Mapping[str, int] | None = None
    """Axes between slices or hosts, if "auto" has several."""
    dtype: str = "bfloat16"
    slots: int | None = None
    """Concurrent requests; None: one per part of `data`."""
    activation_dtype: str | None = None
    """Dtype of activations; None: that of the weights."""
    vae_tiling: bool | None = None
    """Whether images are decoded in tiles. None here and in the next two fields: if the memory
    requires it, as in a pool."""
    swap_experts: bool | None = None
    encoders_on_host: bool | None = None
    eight_bit: EightBit | None = None
    """Blocks with 8-bit weights; None: none."""

    @property
    def slices(self) -> int:
        """Number of slices or hosts to plan for."""
        return math.prod((self.dcn or {}).values())


def with_tiling_decided(plan_request: PlanRequest) -> tuple[PlanRequest, Sketch]:
    """Decide whether to decode in tiles, and return the request with its sketch.

    Raises: PlanError, RequestError: the model rejects the request; CheckpointError: no such model.
    """
    untiled = replace(plan_request, vae_tiling=bool(plan_request.vae_tiling))
    sketch = sketched(untiled)
    if plan_request.vae_tiling is not None or _fits(untiled, sketch):
        return untiled, sketch
    tiled = replace(plan_request, vae_tiling=True)
    smaller = sketched(tiled)
    return (tiled, smaller) if _fits(tiled, smaller) else (untiled, sketch)


def sketched(plan_request: PlanRequest) -> Sketch:
    """Trace the planned request without compiling it."""
    return sketch_of(
        plan_request.model,
        plan_request.dtype,
        plan_request.request,
        check=lambda spec: check(spec, plan_request.request),
        **_reading(plan_request),
    )


def _fits(plan_request: PlanRequest, sketch: Sketch) -> bool:
    try:
        return estimated(plan_request, sketch).fits
    except NothingFits:
        return False


def _reading(plan_request: PlanRequest) -> dict[str, Any]:
    tiles = TilingSettings()
    tiling = Tiling(tiles.side, tiles.stride) if plan_request.vae_tiling else None
    return {
        "activation_dtype": plan_request.activation_dtype,
        "vae_tiling": tiling,
        "rounding": Rounding(plan_request.eight_bit) if plan_request.eight_bit else None,
    }


def check(spec: ModelSpec, request: Mapping[str, Any]) -> None:
    """Validate the fields and size of a request to plan for.

    Raises: RequestError: the model lacks a field, or the size exceeds its limits.
    """
    for name in request:
        if name not in spec.fields:
            raise RequestError(name, f"{spec.name} has no such field")
    _check_size(spec, request)
    if HIRES in request:
        _check_hires(spec, request)


def _check_size(spec: ModelSpec, request: Mapping[str, Any], prefix: str = "") -> None:
    limits = spec.limits
    for name, least, most in (
        ("width", limits.min_side_px, limits.max_side_px),
        ("height", limits.min_side_px, limits.max_side_px),
        ("num_frames", limits.min_frames, limits.max_frames),
    ):
        if name in request and not least <= request[name] <= most:
            raise RequestError(f"{prefix}{name}", f"must be {least} to {most}, not {request[name]}")


def _check_hires(spec: ModelSpec, request: Mapping[str, Any]) -> None:
    for error in type_errors(request[HIRES]):
        raise RequestError(error.field, error.message)
    upscaler = request[HIRES].get("upscaler")
    if upscaler not in (None, *spec.hires_upscalers):
        raise RequestError(f"{HIRES}.upscaler", f"must be {' or '.join(spec.hires_upscalers)}")
    (fields,) = warmup.requests(spec, [request])
    _check_size(spec, fields[HIRES], f"{HIRES}.")


def search_layouts(plan_request: PlanRequest, sketch: Sketch) -> SearchResults:
    """Search layouts with everything on the device; if none fits, with offloading as in a pool."""
    chip, devices = plan_request.topology.chip, plan_request.topology.devices
    for residency in residencies(sketch, plan_request.swap_experts, plan_request.encoders_on_host):
        results = search(sketch, chip, devices, dcn=plan_request.dcn, residency=residency)
        if results.latency:
            break
    return results


def estimated(plan_request: PlanRequest, sketch: Sketch) -> Estimate:
    """Estimate the requested layout, or the best one; offload to the host as needed.

    Raises: PlanError: it does not match the devices or heads; with "auto", nothing fits.
    """
    refused: list[NothingFits] = []
    for residency in residencies(sketch, plan_request.swap_experts, plan_request.encoders_on_host):
        try:
            candidate = _with(residency, plan_request, sketch)
        except NothingFits as error:
            refused.append(error)
        else:
            if candidate.fits:
                break
    else:
        if refused:
            raise refused[-1]
    return candidate


def _with(residency: Residency, plan_request: PlanRequest, sketch: Sketch) -> Estimate:
    """Estimate the layout for one placement of networks. Raises: PlanError: as `estimated`."""
    chip, devices = plan_request.topology.chip, plan_request.topology.devices
    if plan_request.mesh == "auto":
        chosen = choose(sketch, chip, devices, dcn=plan_request.dcn, residency=residency)
        if plan_request.slots is None:
            return chosen
        filled = estimate(sketch, chosen.shape, chip, plan_request.slots, residency=residency)
        return replace(filled, why=chosen.why)
    try:
        shape = plan_request.mesh.over(devices, plan_request.slices, sketch.heads)
    except ValueError as error:
        raise PlanError(f"the mesh does not match {plan_request.topology.name}: {error}") from None
    return estimate(
        sketch, shape, chip, plan_request.slots or shape.size("data"), residency=residency
    )


def planned(
    plan_request: PlanRequest,
    sketch: Sketch,
    *,
    compiles: bool,
    report: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Return the plan of a request: estimates; for TPUs, also the costs of compiled programs.

    Args:
        compiles: whether to compile; otherwise, and for GPUs, everything is estimated.
        report: called with a line per compiled program, since some take minutes.

    Raises: PlanError: as `estimated`, or no compiler is available.
    """
    plan = Plan(
        sketch,
        plan_request.topology,
        plan_request.request,
        plan_request.dtype,
        plan_request.activation_dtype or plan_request.dtype,
        bool(plan_request.vae_tiling),
        plan_request.eight_bit,
        estimated(plan_request, sketch),
    )
    if not compiles or plan_request.topology.chip.kind != "tpu":
        return plan
    tpu_compiler.prepare(plan_request.topology, sketch.family)
    compiled: list[CompiledProgram] = []
    for program in _programs(plan_request, plan.estimate):
        report(f"{program.name}: {program.refused or 'compiled'} ({program.compile_s:.0f} s)")
        compiled.append(program)
    return replace(plan, programs=tuple(compiled))


def _programs(plan_request: PlanRequest, estimate: Estimate) -> Iterator[CompiledProgram]:
    shape = estimate.shape
    devices = tpu_compiler.devices_of(plan_request.topology, math.prod(shape.dcn.values()))
    kernel = kernel_for(devices[0], plan_request.activation_dtype or plan_request.dtype)
    eight_bit = eight_bit_for(devices[0].device_kind)
    layout = Layout(tpu_compiler.mesh_of(shape, devices), kernel, eight_bit=eight_bit)
    residency = estimate.residency
    pipeline: Pipeline = abstract(
        plan_request.model,
        plan_request.dtype,
        layout.of_parameter,
        on_host=residency.on_host,
        swap_experts=bool(residency.swapped),
        **_reading(plan_request),
    )
    (fields,) = warmup.requests(pipeline.spec, [plan_request.request])
    return programs(
        pipeline, fields, layout, Interconnect.of(plan_request.topology.chip, shape), estimate.slots
    )
