"""Duration of a step by the TPU compiler's static schedule.

The full-size step is compiled for absent chips, and its operations are summed by kind. Attention
kernels are counted cycle by cycle, from one block's schedule. Nothing is timed: these are the
compiler's expectations of sequential operations at the chip's clock.
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

from lab.tpu.cases import CASES, DTYPE, Case
from lab.tpu.operations import Kind, Operation, operations
from models.nn.kernels.block_size_search import Case as Shape
from models.nn.kernels.block_size_search import transposed_kernel_cycles
from models.nn.kernels.block_sizes import of_chip
from models.nn.kernels.compiler_schedule import dump_to
from workers.plan import hlo, tpu_compiler
from workers.plan.duration import duration
from workers.plan.estimate import abstract_layout
from workers.plan.model import sketch_of
from workers.plan.per_device import share

Result = TypeVar("Result")


def kernels(case: Case, shapes: Sequence[Shape]) -> list[float]:
    """Return the cycles of one head of this project's attention kernel, for each shape.

    libtpu must not be loaded yet.

    Raises: ValueError: the kernel's blocks do not fit the chip.
    """
    with tempfile.TemporaryDirectory() as dumps:
        os.environ["LIBTPU_INIT_ARGS"] = dump_to(dumps)
        tpu_compiler.prepare(case.slice, case.family)
        device = tpu_compiler.devices_of(case.slice)[0]
        choose = of_chip(device.device_kind)
        cycles_of_shapes = []
        for shape in shapes:
            blocks = choose(jax.numpy.dtype(shape.dtype), shape.dim, shape.keys)
            cycles = transposed_kernel_cycles(shape, blocks, device, Path(dumps))
            if cycles is None:
                raise ValueError(f"{blocks} do not fit {device.device_kind}")
            cycles_of_shapes.append(cycles)
        return cycles_of_shapes


KINDS: tuple[Kind, ...] = ("product", "convolution", "elementwise", "copy")


@dataclass(frozen=True)
class Attention:
    """Attention kernels of one shape in a part."""

    shape: Shape
    heads: int
    """Number of heads, over all these kernels, rows and prompts."""
    seconds: float
    """Seconds of one run of the part."""

    @property
    def flops(self) -> float:
        """FLOPs of these attention kernels in one run, including padding."""
        return 4.0 * self.heads * self.shape.dim * self.shape.queries * self.shape.keys


@dataclass(frozen=True)
class Part:
    """Part of a step on one device: a loop body or the rest.

    A loop's body (a layer) includes its inner loops.
    """

    name: str
    runs: int
    seconds: Mapping[Kind, float]
    """Seconds of one run of XLA's own operations, by kind."""
    attention_s: float
    """Seconds of attention in one run; 0 if not requested."""
    sent_bytes: Mapping[str, float]
    """Bytes sent in one run, by kind of collective."""
    operations: Sequence[Operation]
    """Operations, longest first."""
    attention: Sequence[Attention] = ()
    """Attention by shape, if requested."""

    @property
    def xla_s(self) -> float:
        """Seconds of everything except attention: linears, norms, residuals, RoPE, and copies."""
        return sum(self.seconds.values())


def parts(text: str, clock_hz: float, cycles: Mapping[Shape, float]) -> list[Part]:
    """Split a step into parts, longest first.

    Args:
        cycles: of one head of the attention kernels, by `shape_of`.
    """
    bodies = hlo.computations(text)
    runs = hlo.times(bodies)
    layers = hlo.outermost(bodies)
    operations_of: dict[str, list[Operation]] = {}
    for operation in operations(text):
        operations_of.setdefault(layers[operation.within], []).append(operation)
    sent: dict[str, dict[str, float]] = {name: defaultdict(float) for name in operations_of}
    for name in {operation.within for of_part in operations_of.values() for operation in of_part}:
        layer = layers[name]
        for collective in hlo.collectives(bodies[name]):
            sent[layer][collective.kind] += collective.sent_bytes * runs[name] / runs[layer]
    return sorted(
        (
            _part(name, runs[name], of_part, sent[name], clock_hz, cycles)
            for name, of_part in operations_of.items()
        ),
        key=lambda part: -part.runs * part.xla_s,
    )


def _part(
    name: str,
    runs: int,
    part_operations: Sequence[Operation],
    sent: Mapping[str, float],
    clock_hz: float,
    cycles: Mapping[Shape, float],
) -> Part:
    heads: Counter[Shape] = Counter()
    seconds: dict[Kind, float] = defaultdict(float)
    for item in part_operations:
        seconds[item.kind] += item.total / runs / clock_hz
        if is_attention(item):
            heads[shape_of(item)] += item.operands[0][0] * item.runs // runs
    attention = [
        Attention(shape, count, count * cycles[shape] / clock_hz)
        for shape, count in heads.items()
        if shape in cycles
    ]
    return Part(
        name,
        runs,
        {kind: seconds[kind] for kind in KINDS},
        sum(item.seconds for item in attention),
        dict(sent),
        sorted(part_operations, key=lambda item: -item.total),
        attention,
    )


def is_attention(operation: Operation) -> bool:
    """Return whether an operation is an attention kernel."""
    return operation.kind == "kernel" and operation.name.startswith("transposed_attention")


def shape_of(kernel: Operation) -> Shape:
    """Return one head's padded shape: queries [heads, dim, tokens], keys [heads, tokens, dim]."""
    (_, dim, queries), (_, keys, _) = kernel.operands[:2]
    return Shape(DTYPE, dim, queries, keys)


def attention_flops(name: str) -> float:
    """Return the FLOPs of a step's attention on one device, without padding."""
    return flops(name)["attention"]


@cache
def flops(name: str) -> Mapping[str, float]:
    """Return the FLOPs of a step on one device by kind, without padding or compilation."""
    case = CASES[name]
    sketch = sketch_of(case.model, DTYPE, case.request)
    work = next(iter(sketch.steps.values()))[0].work
    layout = abstract_layout(case.shape).in_use()
    totals: dict[str, float] = defaultdict(float)
    for op, count in work.ops.items():
        totals[op.kind] += count * op.flops * share(layout, op.axes)
    return totals


def in_child(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function in a new process: libtpu reads its settings once per process."""
    with get_context("spawn").Pool(1) as pool:
        result = pool.apply(function, arguments)
        # Close it cleanly: libtpu logs at length when killed.
        pool.close()
        pool.join()
        return result


@dataclass(frozen=True)
class Step:
    """Schedule of one case's step, by the compiler."""

    name: str
    parts: Sequence[Part]
    attention_flops: float
    """FLOPs of attention on a device, without padding."""

    @property
    def case(self) -> Case:
        """Case whose step was compiled."""
        return CASES[self.name]

    @property
    def xla_s(self) -> float:
        """Seconds of XLA's operations, over all parts."""
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
        """Share of the rated peak that the whole step reaches; 1 is the chip's limit."""
        peak = self.case.slice.chip.peak_flops
        return sum(flops(self.name).values()) / (peak * (self.xla_s + self.attention_s))

    @property
    def attention(self) -> list[Attention]:
        """Attention of the whole step, by shape, longest first."""
        heads: Counter[Shape] = Counter()
        seconds: dict[Shape, float] = defaultdict(float)
        for part in self.parts:
            for item in part.attention:
                heads[item.shape] += part.runs * item.heads
                seconds[item.shape] += part.runs * item.seconds
        merged = [Attention(shape, heads[shape], seconds[shape]) for shape in heads]
        return sorted(merged, key=lambda item: -item.seconds)


def read(name: str, text: str, *, attention: bool = True) -> Step:
    """Parse the schedule of a compiled step's text."""
    case = CASES[name]
    shapes = sorted(
        {shape_of(item) for item in operations(text) if is_attention(item)},
        key=lambda item: item.keys,
    )
    cycles = in_child(kernels, case, shapes) if attention and shapes else []
    by_shape = dict(zip(shapes, cycles, strict=False))
    return Step(name, parts(text, case.clock_hz, by_shape), attention_flops(name))


def lines(step: Step, longest: int) -> Iterator[str]:
    """Yield a step's schedule as text, with its longest operations."""
    case = step.case
    mesh = ", ".join(f"{axis} {size}" for axis, size in case.mesh.items())
    yield f"{step.name}: {case.model} on {case.topology}, {mesh}"
    for part in step.parts:
        seconds = ", ".join(f"{kind} {duration(value)}" for kind, value in part.seconds.items())
        sent = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in part.sent_bytes.items())
        yield (
            f"  {part.name} x {part.runs}: XLA {duration(part.xla_s)} ({seconds}); "
            f"attention {duration(part.attention_s)}; {sent}"
        )
        for item in part.operations[:longest]:
            what = f"{item.name} = {item.type[:70]} [{item.source[-60:]}]"
            a_run = 1e3 * item.total / part.runs / case.clock_hz
            yield f"    {a_run:7.3f} ms {item.kind:11} {what}"
    for kernel in step.attention:
        peak_share = kernel.flops / (case.slice.chip.peak_flops * kernel.seconds)
        yield (
            f"  {kernel.heads} heads of {kernel.shape.dim}, {kernel.shape.queries} queries by "
            f"{kernel.shape.keys} keys: {duration(kernel.seconds)} ({peak_share:.1%} of the peak)"
        )
    yield (
        f"  a step: XLA {duration(step.xla_s)}, attention {duration(step.attention_s)} "
        f"({step.attention_peak:.1%} of the peak), sent {step.sent_bytes / 1e6:.0f} MB; "
        f"{step.limit:.1%} of the chip's limit"
    )
