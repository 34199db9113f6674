"""How long a step takes by the TPU compiler's own schedule: `python -m workers.plan.schedule`.

The whole step of a full-size model is compiled for chips that are not there, and its operations
are added up by kind. Nothing is timed: it is what the compiler expects, one operation after the
other, at the chip's clock.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from models.nn.attention.select import kernel_for
from models.sharding import Layout
from workers import warmup
from workers.axes import Shape
from workers.compiler import Compiler
from workers.plan import hlo, libtpu
from workers.plan.chips import CLOCK_HZ
from workers.plan.model import abstract
from workers.plan.operations import Kind, Operation, operations
from workers.plan.topology import Topology
from workers.step_times import Way


@dataclass(frozen=True)
class Case:
    """A model, a size, and the slice and layout that one of its steps is compiled for."""

    model: str
    """A name of `models.known.CHECKPOINTS`, or a folder."""
    family: str
    request: Mapping[str, int]
    topology: str
    mesh: Mapping[str, int]


CASES: Mapping[str, Case] = {
    "wan": Case(
        "wan2.1-14b",
        "wan",
        {"height": 720, "width": 1280, "num_frames": 81},
        "v6e:2x4",
        {"cfg": 2, "context": 4},
    ),
    "flux-tensor": Case(
        "flux-dev", "flux", {"height": 1024, "width": 1024}, "v6e:2x2", {"tensor": 4}
    ),
    "flux-context": Case(
        "flux-dev", "flux", {"height": 1024, "width": 1024}, "v6e:2x2", {"context": 4}
    ),
}


def compiled(case: Case) -> str:
    """The text of a step: the phase that comes first. Nothing of TPUs may have been loaded yet.

    Raises: JaxRuntimeError: it does not fit.
    """
    topology = Topology.parse(case.topology)
    libtpu.prepare(topology, case.family)
    devices = libtpu.devices_of(topology)
    shape = Shape(case.mesh).over(len(devices))
    mesh = libtpu.mesh_of(shape, devices)
    layout = Layout(mesh, kernel_for(devices[0], "bfloat16"))
    pipeline = abstract(case.model, "bfloat16", layout.of_parameter, swap_experts=False)
    (fields,) = warmup.requests(pipeline.spec, [case.request])
    prepared = warmup.prepare(pipeline, fields)
    compiler = Compiler(pipeline, layout)
    row = compiler.trace_encode(prepared.inputs).out_info
    first = prepared.steps[0]
    with jax.set_mesh(mesh):
        traced = compiler.trace_step(first.phase, first.values, Way(1), row)
        return traced.lower().compile().as_text() or ""


KINDS: tuple[Kind, ...] = ("product", "elementwise", "copy")


@dataclass(frozen=True)
class Part:
    """A loop's body, or all that is outside of loops, of one device."""

    name: str
    runs: int
    seconds: Mapping[Kind, float]
    """Of one run, of XLA's own operations."""
    longest: Sequence[Operation]
    sent_bytes: Mapping[str, float]
    """Of one run, by kind of collective."""

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


def parts(text: str, clock_hz: float) -> Iterator[Part]:
    """The longest first."""
    found = list(operations(text))
    bodies = hlo.computations(text)
    for name in sorted({one.within for one in found}, key=lambda name: -_total(found, name)):
        mine = [one for one in found if one.within == name]
        seconds = {
            kind: sum(one.cycles for one in mine if one.kind == kind) / clock_hz for kind in KINDS
        }
        ranked = sorted(mine, key=lambda one: -one.cycles)
        yield Part(name, mine[0].runs, seconds, ranked, _sent(bodies[name]))


def _sent(body: Sequence[str]) -> dict[str, float]:
    sent: dict[str, float] = {}
    for one in hlo.collectives(body):
        sent[one.kind] = sent.get(one.kind, 0.0) + one.sent_bytes
    return sent


def _total(found: Sequence[Operation], name: str) -> int:
    return sum(one.total for one in found if one.within == name)


def lines(name: str, case: Case, text: str, longest: int) -> Iterator[str]:
    clock_hz = CLOCK_HZ[Topology.parse(case.topology).chip.name]
    mesh = ", ".join(f"{axis} {size}" for axis, size in case.mesh.items())
    yield f"{name}: {case.model} on {case.topology}, {mesh}"
    step_s = 0.0
    for part in parts(text, clock_hz):
        step_s += part.runs * part.total_s
        told = ", ".join(f"{kind} {1e3 * part.seconds[kind]:.2f}" for kind in KINDS)
        sent = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in part.sent_bytes.items())
        yield f"  {part.name} x {part.runs}: {1e3 * part.total_s:.2f} ms ({told}); {sent}"
        for one in part.longest[:longest]:
            ms = 1e3 * one.cycles / clock_hz
            what = f"{one.name} = {one.type[:70]} [{one.source[-60:]}]"
            yield f"    {ms:7.3f} ms {one.kind:11} {what}"
    yield f"  XLA's own operations of a step: {1e3 * step_s:.1f} ms"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--longest", type=int, default=0, help="operations of each part to show")
    parser.add_argument("--text", type=Path, help="keep the program's text in this folder")
    parser.add_argument("--read", type=Path, help="read it from there instead of compiling")
    asked = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for name in asked.cases:
        text = (asked.read / f"{name}.txt").read_text() if asked.read else compiled(CASES[name])
        if asked.text:
            (asked.text / f"{name}.txt").write_text(text)
        print("\n".join(lines(name, CASES[name], text, asked.longest)), flush=True)


if __name__ == "__main__":
    main()
