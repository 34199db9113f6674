"""How long a step takes by the TPU compiler's own schedule: `python -m workers.plan.schedule`.

The whole step of a full-size model is compiled for chips that are not there, and its operations
are added up by kind; of attention kernels, cycle by cycle, one block's schedule. Nothing is timed:
it is what the compiler expects, one operation after the other, at the chip's clock.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, TypeVar

import jax

from models.nn.attention.blocks import of_chip
from models.nn.attention.bundles import dump_to
from models.nn.attention.search import Case as Shape
from models.nn.attention.search import upright_cycles
from models.nn.attention.select import kernel_for
from models.sharding import Layout
from workers import warmup
from workers.axes import Shape as Axes
from workers.compiler import Compiler
from workers.plan import hlo, libtpu
from workers.plan.chips import CLOCK_HZ
from workers.plan.duration import duration
from workers.plan.model import abstract, sketch_of
from workers.plan.operations import Kind, Operation, operations
from workers.plan.reckon import abstract_layout
from workers.plan.shares import share
from workers.plan.topology import Topology
from workers.step_times import Way

Result = TypeVar("Result")

DTYPE = "bfloat16"

Stage = Literal["step", "decode"]
"""What is compiled of a request: a step, or what makes pixels of its row."""


@dataclass(frozen=True)
class Case:
    """A model, a size, and the slice and layout that one of its stages is compiled for."""

    model: str
    """A name of `models.known.CHECKPOINTS`, or a folder."""
    family: str
    request: Mapping[str, int]
    topology: str
    mesh: Mapping[str, int]
    stage: Stage = "step"
    """A step is the first phase's."""

    @property
    def slice(self) -> Topology:
        return Topology.parse(self.topology)

    @property
    def clock_hz(self) -> float:
        return CLOCK_HZ[self.slice.chip.name]

    @property
    def shape(self) -> Axes:
        return Axes(self.mesh).over(self.slice.devices)


WAN = {"height": 720, "width": 1280, "num_frames": 81}
WAN_480 = {"height": 480, "width": 832, "num_frames": 81}
SQUARE = {"height": 1024, "width": 1024}
ONE = {"data": 1}
CASES: Mapping[str, Case] = {
    "wan": Case("wan2.1-14b", "wan", WAN, "v6e:2x4", {"cfg": 2, "context": 4}),
    "flux-tensor": Case("flux-dev", "flux", SQUARE, "v6e:2x2", {"tensor": 4}),
    "flux-context": Case("flux-dev", "flux", SQUARE, "v6e:2x2", {"context": 4}),
    "sdxl-decode": Case("sdxl", "sdxl", SQUARE, "v6e:1x1", ONE, "decode"),
    "wan-decode": Case("wan2.1-1.3b", "wan", WAN_480, "v6e:1x1", ONE, "decode"),
}


def compiled(case: Case) -> str:
    """The text of that stage's program. Nothing of TPUs may have been loaded yet.

    Raises: JaxRuntimeError: it does not fit.
    """
    libtpu.prepare(case.slice, case.family)
    devices = libtpu.devices_of(case.slice)
    mesh = libtpu.mesh_of(case.shape, devices)
    layout = Layout(mesh, kernel_for(devices[0], DTYPE))
    pipeline = abstract(case.model, DTYPE, layout.of_parameter, swap_experts=False)
    (fields,) = warmup.requests(pipeline.spec, [case.request])
    prepared = warmup.prepare(pipeline, fields)
    compiler = Compiler(pipeline, layout)
    row = compiler.trace_encode(prepared.inputs).out_info
    with jax.set_mesh(mesh):
        if case.stage == "decode":
            traced = compiler.trace_decode(row)
        else:
            first = prepared.steps[0]
            traced = compiler.trace_step(first.phase, first.values, Way(1), row)
        return traced.lower().compile().as_text() or ""


def kernels(case: Case, shapes: Sequence[Shape]) -> list[float]:
    """Cycles of one head of our own attention, of each shape. Nothing of TPUs may have been loaded
    yet.

    Raises: ValueError: its blocks do not fit the chip.
    """
    with tempfile.TemporaryDirectory() as dumps:
        os.environ["LIBTPU_INIT_ARGS"] = dump_to(dumps)
        libtpu.prepare(case.slice, case.family)
        device = libtpu.devices_of(case.slice)[0]
        choose = of_chip(device.device_kind)
        found = []
        for one in shapes:
            blocks = choose(jax.numpy.dtype(one.dtype), one.dim, one.keys)
            cycles = upright_cycles(one, blocks, device, Path(dumps))
            if cycles is None:
                raise ValueError(f"{blocks} do not fit {device.device_kind}")
            found.append(cycles)
        return found


KINDS: tuple[Kind, ...] = ("product", "elementwise", "copy")


@dataclass(frozen=True)
class Part:
    """A loop's body (a layer), or all that is outside of loops, on one device."""

    name: str
    runs: int
    seconds: Mapping[Kind, float]
    """Of one run, of XLA's own operations."""
    attention_s: float
    """Of one run; 0 where nobody asked for it."""
    sent_bytes: Mapping[str, float]
    """Of one run, by kind of collective."""
    operations: Sequence[Operation]
    """The longest first."""

    @property
    def xla_s(self) -> float:
        """All but attention: linears, norms, residuals, RoPE, and every copy between them."""
        return sum(self.seconds.values())


def parts(text: str, clock_hz: float, cycles: Mapping[Shape, float]) -> list[Part]:
    """The longest first.

    Args:
        cycles: of one head of the attention kernels, by `shape_of`.
    """
    found = list(operations(text))
    bodies = hlo.computations(text)
    return sorted(
        (
            _part([one for one in found if one.within == name], bodies[name], clock_hz, cycles)
            for name in {one.within for one in found}
        ),
        key=lambda part: -part.runs * part.xla_s,
    )


def _part(
    found: Sequence[Operation], body: Sequence[str], clock_hz: float, cycles: Mapping[Shape, float]
) -> Part:
    attention = sum(
        one.operands[0][0] * cycles[shape_of(one)]
        for one in found
        if is_attention(one) and shape_of(one) in cycles
    )
    sent: dict[str, float] = {}
    for each in hlo.collectives(body):
        sent[each.kind] = sent.get(each.kind, 0.0) + each.sent_bytes
    return Part(
        found[0].within,
        found[0].runs,
        {kind: sum(one.cycles for one in found if one.kind == kind) / clock_hz for kind in KINDS},
        attention / clock_hz,
        sent,
        sorted(found, key=lambda one: -one.cycles),
    )


def is_attention(one: Operation) -> bool:
    return one.kind == "kernel" and one.name.startswith("upright")


def shape_of(kernel: Operation) -> Shape:
    """Of one head, padding included: queries [heads, dim, tokens], keys [heads, tokens, dim]."""
    (_, dim, queries), (_, keys, _) = kernel.operands[:2]
    return Shape(DTYPE, dim, queries, keys)


@cache
def attention_flops(name: str) -> float:
    """Of a step's attention on one device, without what is padded."""
    case = CASES[name]
    sketch = sketch_of(case.model, DTYPE, case.request)
    work = next(iter(sketch.steps.values()))[0].work
    layout = abstract_layout(case.shape).in_use()
    return sum(
        count * op.flops * share(layout, op.axes)
        for op, count in work.ops.items()
        if op.kind == "attention"
    )


def in_child(function: Callable[..., Result], *arguments: object) -> Result:
    """libtpu reads its settings once in a process."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


@dataclass(frozen=True)
class Step:
    """What the compiler says of one case."""

    name: str
    parts: Sequence[Part]

    @property
    def case(self) -> Case:
        return CASES[self.name]

    @property
    def xla_s(self) -> float:
        return sum(part.runs * part.xla_s for part in self.parts)

    @property
    def attention_s(self) -> float:
        return sum(part.runs * part.attention_s for part in self.parts)

    @property
    def sent_bytes(self) -> float:
        return sum(part.runs * sum(part.sent_bytes.values()) for part in self.parts)

    @property
    def attention_peak(self) -> float:
        """Share of the rated peak that attention reaches."""
        peak = self.case.slice.chip.peak_flops
        return attention_flops(self.name) / (peak * self.attention_s) if self.attention_s else 0.0


def read(name: str, text: str, *, attention: bool = True) -> Step:
    case = CASES[name]
    found = sorted(
        {shape_of(one) for one in operations(text) if is_attention(one)}, key=lambda one: one.keys
    )
    cycles = in_child(kernels, case, found) if attention and found else []
    return Step(name, parts(text, case.clock_hz, dict(zip(found, cycles, strict=False))))


def lines(step: Step, longest: int) -> Iterator[str]:
    case = step.case
    mesh = ", ".join(f"{axis} {size}" for axis, size in case.mesh.items())
    yield f"{step.name}: {case.model} on {case.topology}, {mesh}"
    for part in step.parts:
        told = ", ".join(f"{kind} {duration(part.seconds[kind])}" for kind in KINDS)
        sent = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in part.sent_bytes.items())
        yield (
            f"  {part.name} x {part.runs}: XLA {duration(part.xla_s)} ({told}); "
            f"attention {duration(part.attention_s)}; {sent}"
        )
        for one in part.operations[:longest]:
            what = f"{one.name} = {one.type[:70]} [{one.source[-60:]}]"
            yield f"    {1e3 * one.cycles / case.clock_hz:7.3f} ms {one.kind:11} {what}"
    yield (
        f"  a {case.stage}: XLA {duration(step.xla_s)}, attention {duration(step.attention_s)} "
        f"({step.attention_peak:.1%} of the peak), sent {step.sent_bytes / 1e6:.0f} MB"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--longest", type=int, default=0, help="operations of each part to show")
    parser.add_argument("--no-attention", action="store_true", help="XLA's own operations alone")
    parser.add_argument("--text", type=Path, help="keep the programs' text in this folder")
    parser.add_argument("--read", type=Path, help="read it from there instead of compiling")
    parser.add_argument("--write", action="store_true", help="put the table into docs/speed.md")
    asked = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    steps = []
    for name in asked.cases:
        kept = asked.read / f"{name}.txt" if asked.read else None
        text = kept.read_text() if kept else in_child(compiled, CASES[name])
        if asked.text:
            (asked.text / f"{name}.txt").write_text(text)
        steps.append(read(name, text, attention=not asked.no_attention))
        print("\n".join(lines(steps[-1], asked.longest)), flush=True)
    if asked.write:
        from workers.plan.speed_page import write

        write(steps)


if __name__ == "__main__":
    main()
