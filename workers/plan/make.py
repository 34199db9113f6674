"""Entry of `atelier plan`: from its options to a search or a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.interface.pipeline import Pipeline, RequestError
from models.nn.kernels.int8_matmul import eight_bit_for
from models.nn.kernels.select import kernel_for
from models.parallel.axis_rules import Layout
from models.spec.asked_hires import mistyped
from models.spec.hires import FIELD as HIRES
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import EightBit
from models.vae.config import Tiling
from models.weights.quantize import Rounding
from service.settings.models import TilingSettings
from workers.plan import tpu_compiler
from workers.plan.auto_layout import NothingFits, choose
from workers.plan.collectives import Interconnect
from workers.plan.estimate import Estimate, estimate
from workers.plan.lowered import CompiledProgram, programs
from workers.plan.model import abstract, sketch_of
from workers.plan.offload import Residency, residencies
from workers.plan.plan import Plan
from workers.plan.search import Found, search
from workers.plan.trace import Sketch
from workers.programs import warmup
from workers.slice.mesh_shape import MeshShape
from workers.slice.topology import PlanError, Topology


@dataclass(frozen=True)
class PlanRequest:
    """A model, a size and the devices to plan for."""

    model: str
    """A checkpoint's folder, file or hub id, or a name of `models.published.CHECKPOINTS`."""
    topology: Topology
    request: Mapping[str, Any]
    """Fields that differ from the model's defaults."""
    mesh: Literal["auto"] | MeshShape = "auto"
    dcn: Mapping[str, int] | None = None
    """Axes between slices or hosts, where "auto" has several of them."""
    dtype: str = "bfloat16"
    slots: int | None = None
    """Requests side by side; None: one for each part of `data`."""
    activation_dtype: str | None = None
    """Dtype of activations; None: the weights'."""
    vae_tiling: bool | None = None
    """Whether images are decoded in tiles; this and the next two: None is where the memory demands
    it, as in a pool."""
    swap_experts: bool | None = None
    encoders_on_host: bool | None = None
    eight_bit: EightBit | None = None
    """Blocks with weights of 8 bits; None: none."""

    @property
    def slices(self) -> int:
        """Number of slices or hosts."""
        return math.prod((self.dcn or {}).values())


def settled(ask: PlanRequest) -> tuple[PlanRequest, Sketch]:
    """Settle whether to decode in tiles, and sketch what is asked of devices then.

    Raises: PlanError, RequestError: the model cannot make it; CheckpointError: no such model.
    """
    whole = replace(ask, vae_tiling=bool(ask.vae_tiling))
    sketch = sketched(whole)
    if ask.vae_tiling is not None or _fits(whole, sketch):
        return whole, sketch
    tiled = replace(ask, vae_tiling=True)
    smaller = sketched(tiled)
    return (tiled, smaller) if _fits(tiled, smaller) else (whole, sketch)


def sketched(ask: PlanRequest) -> Sketch:
    """Return the request's sketch; traced, not compiled."""
    return sketch_of(
        ask.model,
        ask.dtype,
        ask.request,
        check=lambda spec: check(spec, ask.request),
        **_reading(ask),
    )


def _fits(ask: PlanRequest, sketch: Sketch) -> bool:
    try:
        return reckoned(ask, sketch).fits
    except NothingFits:
        return False


def _reading(ask: PlanRequest) -> dict[str, Any]:
    tiles = TilingSettings()
    tiling = Tiling(tiles.side, tiles.stride) if ask.vae_tiling else None
    return {
        "activation_dtype": ask.activation_dtype,
        "vae_tiling": tiling,
        "rounding": Rounding(ask.eight_bit) if ask.eight_bit else None,
    }


def check(spec: ModelSpec, request: Mapping[str, Any]) -> None:
    """Check a request's fields and size.

    Raises: RequestError: a field that the model has not, or a size beyond its limits.
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
    for key, message in mistyped(request[HIRES]):
        raise RequestError(key, message)
    upscaler = request[HIRES].get("upscaler")
    if upscaler not in (None, *spec.hires_upscalers):
        raise RequestError(f"{HIRES}.upscaler", f"must be {' or '.join(spec.hires_upscalers)}")
    (fields,) = warmup.requests(spec, [request])
    _check_size(spec, fields[HIRES], f"{HIRES}.")


def searched(ask: PlanRequest, sketch: Sketch) -> Found:
    """Search with everything on the device if that fits any layout, or else as a pool would."""
    chip, devices = ask.topology.chip, ask.topology.devices
    for residency in residencies(sketch, ask.swap_experts, ask.encoders_on_host):
        found = search(sketch, chip, devices, dcn=ask.dcn, residency=residency)
        if found.latency:
            break
    return found


def reckoned(ask: PlanRequest, sketch: Sketch) -> Estimate:
    """The layout that was asked for, or the best one; with what does not fit on the host.

    Raises: PlanError: it does not match the devices or the heads; of "auto", nothing fits.
    """
    refused: list[NothingFits] = []
    for residency in residencies(sketch, ask.swap_experts, ask.encoders_on_host):
        try:
            found = _with(residency, ask, sketch)
        except NothingFits as error:
            refused.append(error)
        else:
            if found.fits:
                break
    else:
        if refused:
            raise refused[-1]
    return found


def _with(residency: Residency, ask: PlanRequest, sketch: Sketch) -> Estimate:
    """Raises: PlanError: as `reckoned`."""
    chip, devices = ask.topology.chip, ask.topology.devices
    if ask.mesh == "auto":
        chosen = choose(sketch, chip, devices, dcn=ask.dcn, residency=residency)
        if ask.slots is None:
            return chosen
        filled = estimate(sketch, chosen.shape, chip, ask.slots, residency=residency)
        return replace(filled, why=chosen.why)
    try:
        shape = ask.mesh.over(devices, ask.slices, sketch.heads)
    except ValueError as error:
        raise PlanError(f"the mesh does not match {ask.topology.name}: {error}") from None
    return estimate(sketch, shape, chip, ask.slots or shape.size("data"), residency=residency)


def planned(
    ask: PlanRequest,
    sketch: Sketch,
    *,
    compiles: bool,
    tell: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The estimate, and for TPUs the programs that the real compiler makes of it.

    Args:
        compiles: whether to compile; without, and for GPUs, all is reckoned.
        tell: of each program, when it is compiled: some take minutes.

    Raises: PlanError: as `reckoned`; there is no compiler.
    """
    plan = Plan(
        sketch,
        ask.topology,
        ask.request,
        ask.dtype,
        ask.activation_dtype or ask.dtype,
        bool(ask.vae_tiling),
        ask.eight_bit,
        reckoned(ask, sketch),
    )
    if not compiles or ask.topology.chip.kind != "tpu":
        return plan
    tpu_compiler.prepare(ask.topology, sketch.family)
    found: list[CompiledProgram] = []
    for program in _programs(ask, plan.estimate):
        tell(f"{program.name}: {program.refused or 'compiled'} ({program.compile_s:.0f} s)")
        found.append(program)
    return replace(plan, programs=tuple(found))


def _programs(ask: PlanRequest, estimate: Estimate) -> Iterator[CompiledProgram]:
    shape = estimate.shape
    devices = tpu_compiler.devices_of(ask.topology, math.prod(shape.dcn.values()))
    kernel = kernel_for(devices[0], ask.activation_dtype or ask.dtype)
    own = eight_bit_for(devices[0].device_kind)
    layout = Layout(tpu_compiler.mesh_of(shape, devices), kernel, eight_bit=own)
    residency = estimate.residency
    pipeline: Pipeline = abstract(
        ask.model,
        ask.dtype,
        layout.of_parameter,
        on_host=residency.on_host,
        swap_experts=bool(residency.by_turns),
        **_reading(ask),
    )
    (fields,) = warmup.requests(pipeline.spec, [ask.request])
    return programs(
        pipeline, fields, layout, Interconnect.of(ask.topology.chip, shape), estimate.slots
    )
