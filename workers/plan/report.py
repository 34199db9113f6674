"""A plan as text and as JSON. Both say that they are estimates, and what they rest on."""

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
from workers.plan.search import Found
from workers.slice.chips import COLLECTIVE_S, GIB
from workers.slice.mesh_shape import MeshShape

SHOWN = 8
"""Layouts of a search, as text; JSON has all."""


def as_json(plan: Plan) -> dict[str, Any]:
    """Bytes, seconds and FLOPs of one device; a device is half a chip on v4 and tpu7x."""
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
        "steps": sum(count for _, one in plan.sketch.passes() for _, count in one.steps.values()),
        "programs": [_program_json(plan, name) for name in plan.estimate.passes],
        "compiled": bool(plan.programs),
        "compile_s": sum(program.compile_s for program in plan.programs),
        "why": plan.estimate.why,
        "how": how(plan),
        "versions": versions(),
    }


def _program_json(plan: Plan, name: str) -> dict[str, Any]:
    reckoned = plan.estimate.passes[name]
    found = next((program for program in plan.programs if program.name == name), None)
    traffic = tuple(reckoned.traffic.values()) if found is None else found.traffic
    entry = {
        "name": name,
        "runs": plan.runs.get(name, 1),
        "seconds": plan.seconds(name),
        "compute_s": plan.compute_s(name),
        "exchange_s": plan.exchange_s(name),
        "flops": reckoned.flops,
        "collectives": [_traffic_json(one) for one in traffic],
    }
    return entry | ({} if found is None else {"compiler": _compiler_json(found)})


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


def _traffic_json(one: Traffic) -> dict[str, Any]:
    return {
        "kind": one.name,
        "count": one.count,
        "ici_bytes": one.ici_bytes,
        "dcn_bytes": one.dcn_bytes,
        "seconds": one.seconds,
    }


def mesh_json(shape: MeshShape) -> dict[str, Any]:
    """Return the sizes of a mesh as JSON values."""
    ici = {axis: shape.ici.get(axis, 1) for axis in AXIS_NAMES}
    dcn = {axis: shape.dcn.get(axis, 1) for axis in AXIS_NAMES}
    return {"ici": ici, "dcn": dcn, "ring": shape.ring or 1}


def residency_json(residency: Residency) -> dict[str, list[str]]:
    """Return where networks lie as JSON values."""
    return {"on_host": sorted(residency.on_host), "by_turns": sorted(residency.by_turns)}


def found_json(found: Found) -> dict[str, Any]:
    """A search: layouts in order, for one request at a time and for most requests a second."""
    return {
        "estimate": True,
        "latency": [_reckoning_json(one) for one in found.latency],
        "throughput": [_reckoning_json(one) for one in found.throughput],
        "do_not_fit": [_reckoning_json(one) for one in found.refused],
    }


def _reckoning_json(one: Estimate) -> dict[str, Any]:
    return {
        "layout": str(one.shape),
        "mesh": mesh_json(one.shape),
        "residency": residency_json(one.residency),
        "slots": one.slots,
        "fits": one.fits,
        "spare_bytes": one.spare_bytes,
        "step_s": one.step_s,
        "request_s": one.request_s,
        "requests_per_s": one.requests_s,
        "why": one.why,
    }


def how(plan: Plan) -> str:
    """Describe what the seconds rest on."""
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
    ) + (" Bringing weights from host memory is left out." if _brings(plan) else "")


def _brings(plan: Plan) -> bool:
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
    """Return a plan as the command line shows it."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    shape, size = plan.estimate.shape, ", ".join(f"{k} {_said(v)}" for k, v in plan.request.items())
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
        f" ({plan.estimate.slots} side by side) [estimate]"
    )
    for name in plan.estimate.passes:
        yield from _program_lines(plan, name)
    if plan.programs:
        yield f"  compiled in {sum(program.compile_s for program in plan.programs):.0f} s"
    yield f"  {how(plan)}"
    yield "  " + ", ".join(f"{name} {number or 'none'}" for name, number in versions().items())


def _said(value: Any) -> str:
    """Return a field's value; of an object, its members."""
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
    slowest = f"; the compiler's cycles in a row {duration(cycles)}" if cycles else ""
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
    for one in entry["collectives"]:
        yield (
            f"    {one['count']:.0f} x {one['kind']}: {one['ici_bytes'] / 1e6:.4g} MB over ICI, "
            f"{one['dcn_bytes'] / 1e6:.4g} MB over DCN, {duration(one['seconds'])}"
        )


def found_text(found: Found) -> str:
    """Return the layouts of a search as the command line shows them."""
    return "\n".join(
        [
            "Layouts for one request at a time [estimate], the soonest first:",
            *_ranked(found.latency),
            "Layouts for most requests a second [estimate]:",
            *_ranked(found.throughput),
            f"{len(found.refused)} layouts do not fit" + _smallest(found.refused),
        ]
    )


def _ranked(found: Sequence[Estimate]) -> Iterator[str]:
    for one in found[:SHOWN]:
        yield (
            f"  {one.shape!s:40} {duration(one.step_s):>9} a step, {duration(one.request_s):>9} a "
            f"request, {one.requests_s:.4g} requests/s with {one.slots}, "
            f"{one.spare_bytes / GIB:.1f} GiB to spare"
        )
    if found:
        yield f"  {found[0].shape}: {found[0].why}"


def _smallest(refused: Sequence[Estimate]) -> str:
    return f"; the smallest: {refused[0].refusal()}" if refused else ""


def both_json(plan: Plan | None, found: Found | None) -> Mapping[str, Any]:
    """A plan, with the search beside it where there was one."""
    searched = {} if found is None else {"search": found_json(found)}
    return (as_json(plan) if plan else {"estimate": True, "versions": versions()}) | searched
