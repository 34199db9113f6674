"""Text and JSON reports of plans. Both state that the numbers are estimates, and their basis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from models.parallel.mesh_axes import AXIS_NAMES
from workers.plan.collectives import Traffic
from workers.plan.duration import duration
from workers.plan.estimate import Estimate
from workers.plan.lowered import CompiledProgram
from workers.plan.offload import ALL_ON_DEVICE, Residency
from workers.plan.plan import Plan
from workers.plan.search import SearchResults
from workers.slice.chips import COLLECTIVE_S, GIB
from workers.slice.mesh_shape import MeshShape

SHOWN = 8
"""Number of a search's layouts in text; JSON has all."""


def as_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON: bytes, seconds and FLOPs of one device (half a chip on v4, tpu7x)."""
    return {
        "estimate": True,
        "model": plan.sketch.model,
        "request": dict(plan.request),
        "dtype": plan.dtype,
        "activation_dtype": plan.activation_dtype,
        "vae_tiling": plan.vae_tiling,
        "eight_bit": plan.eight_bit,
        "residency": residency_json(plan.estimate.residency),
        "topology": plan.topology.name,
        "devices": plan.estimate.shape.devices,
        "mesh": mesh_json(plan.estimate.shape),
        "slots": plan.estimate.slots,
        "fits": plan.fits,
        "memory_bytes": plan.memory,
        "limit_bytes": plan.chip.memory_bytes,
        "spare_bytes": plan.spare_bytes,
        "step_s": plan.step_s,
        "request_s": plan.request_s,
        "steps": sum(
            count for _, sketch in plan.sketch.passes() for _, count in sketch.steps.values()
        ),
        "programs": [_program_json(plan, name) for name in plan.estimate.passes],
        "compiled": bool(plan.programs),
        "compile_s": sum(program.compile_s for program in plan.programs),
        "why": plan.estimate.why,
        "how": how(plan),
        "versions": versions(),
    }


def _program_json(plan: Plan, name: str) -> dict[str, Any]:
    estimated = plan.estimate.passes[name]
    compiled = next((program for program in plan.programs if program.name == name), None)
    traffic = tuple(estimated.traffic.values()) if compiled is None else compiled.traffic
    entry = {
        "name": name,
        "runs": plan.runs.get(name, 1),
        "seconds": plan.seconds(name),
        "compute_s": plan.compute_s(name),
        "exchange_s": plan.exchange_s(name),
        "flops": estimated.flops,
        "collectives": [_traffic_json(item) for item in traffic],
    }
    return entry | ({} if compiled is None else {"compiler": _compiler_json(compiled)})


def _compiler_json(program: CompiledProgram) -> dict[str, Any]:
    return {
        "compile_s": program.compile_s,
        "refused": program.refused or None,
        "argument_bytes": program.argument_bytes,
        "output_bytes": program.output_bytes,
        "temporary_bytes": program.temporary_bytes,
        "code_bytes": program.code_bytes,
        "flops_loops_once": program.flops_once,
        "bytes_loops_once": program.bytes_once,
        "cycles_s": program.cycles_s,
    }


def _traffic_json(traffic: Traffic) -> dict[str, Any]:
    return {
        "kind": traffic.name,
        "count": traffic.count,
        "ici_bytes": traffic.ici_bytes,
        "dcn_bytes": traffic.dcn_bytes,
        "seconds": traffic.seconds,
    }


def mesh_json(shape: MeshShape) -> dict[str, Any]:
    """Return the sizes of a mesh as JSON values."""
    ici = {axis: shape.ici.get(axis, 1) for axis in AXIS_NAMES}
    dcn = {axis: shape.dcn.get(axis, 1) for axis in AXIS_NAMES}
    return {"ici": ici, "dcn": dcn, "ring": shape.ring or 1}


def residency_json(residency: Residency) -> dict[str, list[str]]:
    """Return the placement of networks as JSON values."""
    return {"on_host": sorted(residency.on_host), "by_turns": sorted(residency.swapped)}


def search_json(results: SearchResults) -> dict[str, Any]:
    """Return a search as JSON: ranked layouts for latency and for throughput."""
    return {
        "estimate": True,
        "latency": [_reckoning_json(candidate) for candidate in results.latency],
        "throughput": [_reckoning_json(candidate) for candidate in results.throughput],
        "do_not_fit": [_reckoning_json(candidate) for candidate in results.refused],
    }


def _reckoning_json(candidate: Estimate) -> dict[str, Any]:
    return {
        "layout": str(candidate.shape),
        "mesh": mesh_json(candidate.shape),
        "residency": residency_json(candidate.residency),
        "slots": candidate.slots,
        "fits": candidate.fits,
        "spare_bytes": candidate.spare_bytes,
        "step_s": candidate.step_s,
        "request_s": candidate.request_s,
        "requests_per_s": candidate.requests_s,
        "why": candidate.why,
    }


def how(plan: Plan) -> str:
    """Describe the assumptions behind the seconds that a plan estimates."""
    by = plan.chip.efficiency
    sent = "as compiled" if any(program.traffic for program in plan.programs) else "by formula"
    return (
        f"Estimates, not measurements. Computing: FLOPs counted in the traced programs over the "
        f"rated {plan.chip.peak_flops / 1e12:.0f} TFLOP/s a device, of which linears are taken to "
        f"reach {by.matmul:.0%}, attention {by.attention:.0%} and convolutions {by.conv:.0%}, or "
        f"their bytes over {plan.chip.memory_bytes_s / 1e9:.0f} GB/s if that takes longer. "
        f"Exchange: bytes {sent} over {plan.chip.ici_bytes_s / 1e9:.0f} GB/s (ICI, one link) and "
        f"{plan.chip.dcn_bytes_s / 1e9:.3g} GB/s (DCN) with {COLLECTIVE_S * 1e6:.0f} µs a "
        "collective, added as if nothing was computed meanwhile."
    ) + (" Loading weights from host memory is not included." if _loads_from_host(plan) else "")


def _loads_from_host(plan: Plan) -> bool:
    return plan.estimate.residency != ALL_ON_DEVICE


def versions() -> dict[str, str | None]:
    """Return the versions of the packages that a plan depends on."""
    return {name: _version(name) for name in ("jax", "libtpu", "flax")}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def as_text(plan: Plan) -> str:
    """Format a plan as text for the command line."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    shape, size = (
        plan.estimate.shape,
        ", ".join(f"{k} {_as_text(v)}" for k, v in plan.request.items()),
    )
    eight = f", 8 bits {plan.eight_bit}" if plan.eight_bit else ""
    dtype = f"{plan.dtype} weights{eight}, {plan.activation_dtype} activations"
    yield f"{plan.sketch.model} ({dtype}; {size}) on {plan.topology.name}, {shape} [estimate]"
    if plan.estimate.why:
        yield f"  {plan.estimate.why}"
    tiles = ", decoded in tiles" if plan.vae_tiling else ""
    yield f"  {plan.estimate.residency}{tiles}"
    yield _fit(plan)
    for kind, bytes_ in plan.memory.items():
        yield f"    {bytes_ / GIB:9.3f} GiB  {kind}"
    yield (
        f"  a step {duration(plan.step_s)}, a request {duration(plan.request_s)}"
        f" (batch of {plan.estimate.slots}) [estimate]"
    )
    for name in plan.estimate.passes:
        yield from _program_lines(plan, name)
    if plan.programs:
        yield f"  compiled in {sum(program.compile_s for program in plan.programs):.0f} s"
    yield f"  {how(plan)}"
    yield "  " + ", ".join(f"{name} {number or 'none'}" for name, number in versions().items())


def _as_text(value: Any) -> str:
    """Format a request field's value as text; objects as their members."""
    return " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _fit(plan: Plan) -> str:
    limit = plan.chip.memory_bytes / GIB
    if plan.refused:
        reasons = "; ".join(f"{program.name} {program.refused}" for program in plan.refused)
        return f"  does not fit {limit:.2f} GiB a device, the compiler says: {reasons}"
    spare = plan.spare_bytes / GIB
    if plan.fits:
        return f"  fits {limit:.2f} GiB a device, {spare:.2f} to spare"
    return f"  does not fit {limit:.2f} GiB a device: {-spare:.2f} too much"


def _program_lines(plan: Plan, name: str) -> Iterator[str]:
    entry = _program_json(plan, name)
    compiler = entry.get("compiler")
    cycles = compiler and compiler["cycles_s"]
    slowest = f"; the compiler's sequential cycles {duration(cycles)}" if cycles else ""
    yield (
        f"  {name} x {entry['runs']}: {duration(entry['seconds'])}"
        f" (computing {duration(entry['compute_s'])}, exchange {duration(entry['exchange_s'])}"
        f"{slowest}), {entry['flops'] / 1e12:.3g} TFLOP a device"
    )
    if compiler:
        yield f"    compiled in {compiler['compile_s']:.0f} s; " + ", ".join(
            f"{compiler[f'{kind}_bytes'] / GIB:.3f} GiB {kind}"
            for kind in ("argument", "output", "temporary", "code")
        )
    for item in entry["collectives"]:
        yield (
            f"    {item['count']:.0f} x {item['kind']}: {item['ici_bytes'] / 1e6:.4g} MB over ICI, "
            f"{item['dcn_bytes'] / 1e6:.4g} MB over DCN, {duration(item['seconds'])}"
        )


def search_text(results: SearchResults) -> str:
    """Format the layouts of a search as text for the command line."""
    return "\n".join(
        [
            "Layouts for one request at a time [estimate], fastest first:",
            *_ranked(results.latency),
            "Layouts for most requests a second [estimate]:",
            *_ranked(results.throughput),
            f"{len(results.refused)} layouts do not fit" + _smallest(results.refused),
        ]
    )


def _ranked(ranked: Sequence[Estimate]) -> Iterator[str]:
    for row in ranked[:SHOWN]:
        yield (
            f"  {row.shape!s:40} {duration(row.step_s):>9} a step, {duration(row.request_s):>9} a "
            f"request, {row.requests_s:.4g} requests/s with {row.slots}, "
            f"{row.spare_bytes / GIB:.1f} GiB to spare"
        )
    if ranked:
        yield f"  {ranked[0].shape}: {ranked[0].why}"


def _smallest(refused: Sequence[Estimate]) -> str:
    return f"; the smallest: {refused[0].refusal()}" if refused else ""


def both_json(plan: Plan | None, results: SearchResults | None) -> Mapping[str, Any]:
    """Return a plan as JSON, with the search if there was one."""
    search_layouts = {} if results is None else {"search": search_json(results)}
    return (as_json(plan) if plan else {"estimate": True, "versions": versions()}) | search_layouts
