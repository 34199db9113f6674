"""Length of a step by the TPU compiler's own schedule.

The whole step of a full-size model is compiled for chips that are not there, and its operations
are added up by kind; of attention kernels, cycle by cycle, one block's schedule. Nothing is timed:
it is what the compiler expects, one operation after the other, at the chip's clock.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import jax

from models.nn.kernels.block_size_search import Case as Shape
from models.nn.kernels.block_size_search import upright_cycles
from models.nn.kernels.block_sizes import of_chip
from models.nn.kernels.compiler_schedule import dump_to
from workers.plan import hlo, tpu_compiler
from workers.plan.cases import CASES, DTYPE, Case
from workers.plan.duration import duration
from workers.plan.estimate import abstract_layout
from workers.plan.model import sketch_of
from workers.plan.operations import Kind, Operation, operations
from workers.plan.per_device import share

Result = TypeVar("Result")


def kernels(case: Case, shapes: Sequence[Shape]) -> list[float]:
    """Cycles of one head of our own attention, of each shape.

    Nothing of TPUs may have been loaded yet.

    Raises: ValueError: its blocks do not fit the chip.
    """
    with tempfile.TemporaryDirectory() as dumps:
        os.environ["LIBTPU_INIT_ARGS"] = dump_to(dumps)
        tpu_compiler.prepare(case.slice, case.family)
        device = tpu_compiler.devices_of(case.slice)[0]
        choose = of_chip(device.device_kind)
        found = []
        for one in shapes:
            blocks = choose(jax.numpy.dtype(one.dtype), one.dim, one.keys)
            cycles = upright_cycles(one, blocks, device, Path(dumps))
            if cycles is None:
                raise ValueError(f"{blocks} do not fit {device.device_kind}")
            found.append(cycles)
        return found


KINDS: tuple[Kind, ...] = ("product", "convolution", "elementwise", "copy")


@dataclass(frozen=True)
class Attention:
    """The kernels of one shape that a part has."""

    shape: Shape
    heads: int
    """Number of heads of all of them, each for all rows and prompts."""
    seconds: float
    """Seconds of one run of the part."""

    @property
    def flops(self) -> float:
        """FLOPs of one run, padding counted as work."""
        return 4.0 * self.heads * self.shape.dim * self.shape.queries * self.shape.keys


@dataclass(frozen=True)
class Part:
    """A part of a step, on one device.

    A loop's body (a layer) with the loops inside, or all that is outside of loops.
    """

    name: str
    runs: int
    seconds: Mapping[Kind, float]
    """Seconds of one run, of XLA's own operations."""
    attention_s: float
    """Seconds of attention in one run; 0 where nobody asked for it."""
    sent_bytes: Mapping[str, float]
    """Bytes sent in one run, by kind of collective."""
    operations: Sequence[Operation]
    """The longest first."""
    attention: Sequence[Attention] = ()
    """Attention by shape, where somebody asked for it."""

    @property
    def xla_s(self) -> float:
        """Seconds of all but attention: linears, norms, residuals, RoPE, and their copies."""
        return sum(self.seconds.values())


def parts(text: str, clock_hz: float, cycles: Mapping[Shape, float]) -> list[Part]:
    """The longest first.

    Args:
        cycles: of one head of the attention kernels, by `shape_of`.
    """
    bodies = hlo.computations(text)
    runs = hlo.times(bodies)
    layers = hlo.outermost(bodies)
    found: dict[str, list[Operation]] = {}
    for one in operations(text):
        found.setdefault(layers[one.within], []).append(one)
    sent: dict[str, dict[str, float]] = {name: defaultdict(float) for name in found}
    for name in {one.within for some in found.values() for one in some}:
        layer = layers[name]
        for each in hlo.collectives(bodies[name]):
            sent[layer][each.kind] += each.sent_bytes * runs[name] / runs[layer]
    return sorted(
        (
            _part(name, runs[name], some, sent[name], clock_hz, cycles)
            for name, some in found.items()
        ),
        key=lambda part: -part.runs * part.xla_s,
    )


def _part(
    name: str,
    runs: int,
    found: Sequence[Operation],
    sent: Mapping[str, float],
    clock_hz: float,
    cycles: Mapping[Shape, float],
) -> Part:
    heads: Counter[Shape] = Counter()
    seconds: dict[Kind, float] = defaultdict(float)
    for one in found:
        seconds[one.kind] += one.total / runs / clock_hz
        if is_attention(one):
            heads[shape_of(one)] += one.operands[0][0] * one.runs // runs
    attention = [
        Attention(shape, count, count * cycles[shape] / clock_hz)
        for shape, count in heads.items()
        if shape in cycles
    ]
    return Part(
        name,
        runs,
        {kind: seconds[kind] for kind in KINDS},
        sum(one.seconds for one in attention),
        dict(sent),
        sorted(found, key=lambda one: -one.total),
        attention,
    )


def is_attention(one: Operation) -> bool:
    """Return whether an operation is a kernel of attention."""
    return one.kind == "kernel" and one.name.startswith("upright")


def shape_of(kernel: Operation) -> Shape:
    """Return one head's padded shape: queries [heads, dim, tokens], keys [heads, tokens, dim]."""
    (_, dim, queries), (_, keys, _) = kernel.operands[:2]
    return Shape(DTYPE, dim, queries, keys)


def attention_flops(name: str) -> float:
    """FLOPs of a step's attention on one device, without what is padded."""
    return flops(name)["attention"]


@cache
def flops(name: str) -> Mapping[str, float]:
    """FLOPs of a step on one device, by kind of work, without padding. Nothing is compiled."""
    case = CASES[name]
    sketch = sketch_of(case.model, DTYPE, case.request)
    work = next(iter(sketch.steps.values()))[0].work
    layout = abstract_layout(case.shape).in_use()
    found: dict[str, float] = defaultdict(float)
    for op, count in work.ops.items():
        found[op.kind] += count * op.flops * share(layout, op.axes)
    return found


def in_child(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function in a process of its own: libtpu reads its settings once in a process."""
    with get_context("spawn").Pool(1) as pool:
        found = pool.apply(function, arguments)
        # Ended by a signal, libtpu would tell of it at length.
        pool.close()
        pool.join()
        return found


@dataclass(frozen=True)
class Step:
    """Schedule of one case, as the compiler gives it."""

    name: str
    parts: Sequence[Part]
    attention_flops: float
    """FLOPs of attention on a device, without what is padded."""

    @property
    def case(self) -> Case:
        """Case that was compiled."""
        return CASES[self.name]

    @property
    def xla_s(self) -> float:
        """Seconds of what XLA compiled, over all parts."""
        return sum(part.runs * part.xla_s for part in self.parts)

    @property
    def attention_s(self) -> float:
        """Seconds of the attention kernels, over all parts."""
        return sum(part.runs * part.attention_s for part in self.parts)

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends, over all parts."""
        return sum(part.runs * sum(part.sent_bytes.values()) for part in self.parts)

    @property
    def attention_peak(self) -> float:
        """Share of the rated peak that attention reaches."""
        peak = self.case.slice.chip.peak_flops
        return self.attention_flops / (peak * self.attention_s) if self.attention_s else 0.0

    @property
    def limit(self) -> float:
        """Share of the rated peak that the whole step reaches: 1 is the chip's limit."""
        peak = self.case.slice.chip.peak_flops
        return sum(flops(self.name).values()) / (peak * (self.xla_s + self.attention_s))

    @property
    def attention(self) -> list[Attention]:
        """Attention of the whole step, by shape, the longest first."""
        heads: Counter[Shape] = Counter()
        seconds: dict[Shape, float] = defaultdict(float)
        for part in self.parts:
            for one in part.attention:
                heads[one.shape] += part.runs * one.heads
                seconds[one.shape] += part.runs * one.seconds
        found = [Attention(shape, heads[shape], seconds[shape]) for shape in heads]
        return sorted(found, key=lambda one: -one.seconds)


def read(name: str, text: str, *, attention: bool = True) -> Step:
    """Return what a compiled step's text says of its schedule."""
    case = CASES[name]
    found = sorted(
        {shape_of(one) for one in operations(text) if is_attention(one)}, key=lambda one: one.keys
    )
    cycles = in_child(kernels, case, found) if attention and found else []
    by_shape = dict(zip(found, cycles, strict=False))
    return Step(name, parts(text, case.clock_hz, by_shape), attention_flops(name))


def lines(step: Step, longest: int) -> Iterator[str]:
    """Yield a step's schedule, its longest operations by name."""
    case = step.case
    mesh = ", ".join(f"{axis} {size}" for axis, size in case.mesh.items())
    yield f"{step.name}: {case.model} on {case.topology}, {mesh}"
    for part in step.parts:
        seconds = ", ".join(f"{kind} {duration(some)}" for kind, some in part.seconds.items())
        sent = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in part.sent_bytes.items())
        yield (
            f"  {part.name} x {part.runs}: XLA {duration(part.xla_s)} ({seconds}); "
            f"attention {duration(part.attention_s)}; {sent}"
        )
        for one in part.operations[:longest]:
            what = f"{one.name} = {one.type[:70]} [{one.source[-60:]}]"
            a_run = 1e3 * one.total / part.runs / case.clock_hz
            yield f"    {a_run:7.3f} ms {one.kind:11} {what}"
    for each in step.attention:
        at = each.flops / (case.slice.chip.peak_flops * each.seconds)
        yield (
            f"  {each.heads} heads of {each.shape.dim}, {each.shape.queries} queries by "
            f"{each.shape.keys} keys: {duration(each.seconds)} ({at:.1%} of the peak)"
        )
    yield (
        f"  a step: XLA {duration(step.xla_s)}, attention {duration(step.attention_s)} "
        f"({step.attention_peak:.1%} of the peak), sent {step.sent_bytes / 1e6:.0f} MB; "
        f"{step.limit:.1%} of the chip's limit"
    )
