"""Memory and time of one layout, without a compiler: the sketch's work over the chip's rates.

An estimate, and quick: a whole search takes less than a second. It ranks layouts; `compiled` tells
what one of them really needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import TABLE, Layout, Table, abstract_mesh
from workers.plan.collectives import Interconnect, Traffic, traffic
from workers.plan.offload import ALL_ON_DEVICE, Residency
from workers.plan.per_device import scaled, share
from workers.plan.trace import Sketch, TracedProgram, Weight
from workers.slice.chips import GIB, Chip
from workers.slice.mesh_shape import MeshShape

RESERVE = 0.03
"""Share of a device's memory for compiled programs, and gaps between buffers."""
ROW_COPIES = 3
"""Copies of each request's state: read by a step, written by it, and waiting for a slot."""
CONDITIONS_COPIES = 2
"""Copies of each request's conditions: those that a step in flight reads, and the next ones."""


@dataclass(frozen=True)
class Pass:
    """Run of one program on one device."""

    flops: float
    compute_s: float
    """Time of matrix units or memory, whichever takes longer, operation by operation."""
    traffic: Mapping[str, Traffic]

    @property
    def traffic_s(self) -> float:
        """Seconds of all exchange."""
        return sum(one.seconds for one in self.traffic.values())

    @property
    def seconds(self) -> float:
        """Seconds as if nothing was sent while something is computed."""
        return self.compute_s + self.traffic_s


@dataclass(frozen=True)
class Estimate:
    """An estimate of one layout of one slice, for one model and one size of request."""

    shape: MeshShape
    chip: Chip
    slots: int
    """Requests side by side."""
    memory: Mapping[str, int]
    """Bytes a device by kind: weights by network, rows, temporaries, reserve."""
    passes: Mapping[str, Pass]
    """Passes by program: `encode`, `decode`, the step of each phase, and its conditions if any; of
    both passes of hires fix."""
    phase: str
    """Phase that has most steps."""
    request_s: float
    """Seconds of `slots` requests side by side: all steps, one encoding and decoding each."""
    residency: Residency = ALL_ON_DEVICE
    why: str = field(default="", compare=False)

    @property
    def step(self) -> Pass:
        """Costs of one denoising step of the phase that has most."""
        return self.passes[self.phase]

    @property
    def step_s(self) -> float:
        """Seconds of one denoising step."""
        return self.step.seconds

    @property
    def total_bytes(self) -> int:
        """Bytes of all that lies on a device."""
        return sum(self.memory.values())

    @property
    def spare_bytes(self) -> int:
        """Negative: what is missing."""
        return self.chip.memory_bytes - self.total_bytes

    @property
    def fits(self) -> bool:
        """Return whether a device's memory holds it."""
        return self.spare_bytes >= 0

    @property
    def requests_s(self) -> float:
        """Requests a second."""
        return self.slots / self.request_s

    def refusal(self) -> str:
        """Return why it does not fit, with the numbers."""
        kinds = ", ".join(f"{kind} {size / GIB:.2f}" for kind, size in self.memory.items())
        return (
            f"{self.shape} needs about {self.total_bytes / GIB:.2f} GiB a device, but "
            f"a {self.chip.name} has {self.chip.memory_bytes / GIB:.2f} ({kinds}); split the "
            "weights (fsdp, tensor), take fewer slots or a smaller size"
        )


def abstract_layout(shape: MeshShape, table: Table = TABLE) -> Layout:
    """A layout of devices that are nowhere; for shapes alone."""
    return Layout(abstract_mesh(shape.mesh_sizes), xla_kernel, table)


def estimate(
    sketch: Sketch,
    shape: MeshShape,
    chip: Chip,
    slots: int = 1,
    *,
    launch: int | None = None,
    table: Table = TABLE,
    residency: Residency = ALL_ON_DEVICE,
) -> Estimate:
    """Estimate what a layout takes, and how long a step and a request are.

    Args:
        shape: with every size known (`Shape.over`).
        slots: requests side by side on the slice.
        launch: rows that one launch steps, some of them padding; None: all slots.
        table: the layout's, where a deployment overrides rows of it.
    """
    layout = abstract_layout(shape, table)
    both = [
        _of_pass(name, one, shape, layout, chip, slots, launch or slots, residency)
        for name, one in sketch.passes()
    ]
    first = both[0]
    # Rows of either pass lie in the slots, and one program runs at a time: the larger one counts.
    memory = {kind: max(one.memory[kind] for one in both) for kind in first.memory}
    passes = {name: run for one in both for name, run in one.passes.items()}
    request_s = sum(one.request_s for one in both)
    return replace(first, memory=memory, passes=passes, request_s=request_s)


def _of_pass(
    named: str, sketch: Sketch, shape: MeshShape, layout: Layout, chip: Chip,
    slots: int, rows: int, residency: Residency,
) -> Estimate:  # fmt: skip
    """Estimate one pass.

    Args:
        named: beginning of its programs' names.
        rows: that one launch steps.
    """
    wires = Interconnect.of(chip, shape)
    steps = {
        phase: _pass(program, layout, wires, rows) for phase, (program, _) in sketch.steps.items()
    }
    encode, decode = (_pass(one, layout, wires, 1) for one in (sketch.encode, sketch.decode))
    conditions = {
        name: _pass(one, layout, wires, 1) for name, (one, _) in sketch.conditions.items()
    }
    denoise_s = sum(steps[phase].seconds * count for phase, (_, count) in sketch.steps.items())
    conditions_s = sum(
        conditions[name].seconds * count for name, (_, count) in sketch.conditions.items()
    )
    return Estimate(
        shape,
        chip,
        slots,
        _memory(sketch, layout, chip, slots, rows, residency),
        {
            named + name: run
            for name, run in {**steps, **conditions, "encode": encode, "decode": decode}.items()
        },
        sketch.phase,
        math.ceil(slots / rows) * denoise_s
        + slots * (conditions_s + encode.seconds + decode.seconds),
        residency,
    )


def _pass(program: TracedProgram, layout: Layout, wires: Interconnect, rows: int) -> Pass:
    flops = seconds = 0.0
    used = layout.in_use()
    for op, count in program.work.ops.items():
        times = rows if any(axis == "batch" for axis, _ in op.axes) else 1
        part = share(used, scaled(op.axes, times))
        rate = wires.chip.peak_flops * getattr(wires.chip.efficiency, op.kind)
        mine = count * op.flops * times * part
        weights = tuple((axis, size) for axis, size in op.axes if axis in ("heads", "mlp"))
        moved = op.moved_bytes * times * part + op.weight_bytes * share(used, weights)
        flops += mine
        seconds += max(mine / rate, count * moved / wires.chip.memory_bytes_s)
    return Pass(flops, seconds, traffic(program, layout, wires, rows))


def _memory(
    sketch: Sketch, layout: Layout, chip: Chip, slots: int, rows: int, residency: Residency
) -> dict[str, int]:
    weights = weight_bytes(tuple(one for one in sketch.weights if residency.keeps(one)), layout)
    turns = {name: weights.pop(name) for name in residency.by_turns}
    if turns:
        weights[" or ".join(sorted(turns))] = max(turns.values())
    programs = [sketch.encode, sketch.decode, *(program for program, _ in sketch.steps.values())]
    return {
        **{f"weights of {name}": size for name, size in weights.items()},
        "rows": slots
        * (ROW_COPIES * row_bytes(sketch, layout) + CONDITIONS_COPIES * sketch.conditions_bytes),
        "temporaries": max(
            _temporaries(program, layout, rows, residency.on_host) for program in programs
        ),
        "reserve": int(RESERVE * chip.memory_bytes),
    }


def weight_bytes(weights: tuple[Weight, ...], layout: Layout) -> dict[str, int]:
    """Weight bytes on one device, by network; exact."""
    sizes: Counter[str] = Counter()
    for weight in weights:
        sizes[weight.network] += weight.on_one(layout)
    return dict(sizes)


def row_bytes(sketch: Sketch, layout: Layout) -> int:
    """Bytes of a row on one device; exact."""
    return sum(leaf.on_one(layout) for leaf in sketch.row)


def _temporaries(
    program: TracedProgram, layout: Layout, rows: int, on_host: frozenset[str] = frozenset()
) -> int:
    """Temporary bytes at the peak, with the weights of a layer that is gathered or loaded."""
    total = 0.0
    for axes, size in program.peak.items():
        times = rows if any(axis == "batch" for axis, _ in axes) else 1
        total += size * times * share(layout, scaled(axes, times))
    return int(total) + _gathered(program, layout, on_host)


def _gathered(program: TracedProgram, layout: Layout, on_host: frozenset[str]) -> int:
    """The weights of the widest layer, twice: one is used while the next is brought."""
    used = layout.in_use()
    layers: Counter[tuple[str, int]] = Counter()
    for weight in program.weights:
        stored = layout.split(weight.axes, weight.shape)
        needed = used.split(weight.axes, weight.shape)
        if stored == needed and weight.network not in on_host:
            continue
        count = weight.shape[0] if weight.axes[:1] == ("layers",) else 1
        whole = weight.nbytes // used.devices(tuple(n for names in needed for n in names))
        layers[weight.network, count] += whole // count
    stacked = [size for (_, count), size in layers.items() if count > 1]
    alone = [size for (_, count), size in layers.items() if count == 1]
    return 2 * max(stacked, default=0) + max(alone, default=0)
