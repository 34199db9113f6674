"""Analytic estimate of a layout's memory and time: the sketch's operations over the chip's rates.

A whole search takes less than a second. Estimates rank layouts; the compiler's plan gives the
actual numbers of one of them.
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
"""Copies of each request's state: a step's input, its output, and one that waits for a slot."""
CONDITIONS_COPIES = 2
"""Copies of each request's modulations: those of the running step, and the next ones."""


@dataclass(frozen=True)
class Pass:
    """Estimated costs of one program's run on one device."""

    flops: float
    compute_s: float
    """Sum over operations of the time of matrix units or memory, whichever is longer."""
    traffic: Mapping[str, Traffic]

    @property
    def traffic_s(self) -> float:
        """Seconds of all collectives of the program."""
        return sum(item.seconds for item in self.traffic.values())

    @property
    def seconds(self) -> float:
        """Estimated seconds of the program, without overlap of communication and computation."""
        return self.compute_s + self.traffic_s


@dataclass(frozen=True)
class Estimate:
    """Memory and time of one layout of one slice, for one model and size of request."""

    shape: MeshShape
    chip: Chip
    slots: int
    """Concurrent requests."""
    memory: Mapping[str, int]
    """Bytes a device by kind: weights by network, rows, temporaries, reserve."""
    passes: Mapping[str, Pass]
    """Passes by program: `encode`, `decode`, the step of each step kind, and its modulations if
    any; with hires fix, of both passes."""
    main_step_kind: str
    """Step kind with the most steps."""
    request_s: float
    """Seconds of `slots` concurrent requests: all steps, and one encoding and decoding each."""
    residency: Residency = ALL_ON_DEVICE
    why: str = field(default="", compare=False)

    @property
    def step(self) -> Pass:
        """Costs of one denoising step of the step kind with the most steps."""
        return self.passes[self.main_step_kind]

    @property
    def step_s(self) -> float:
        """Estimated seconds of one denoising step."""
        return self.step.seconds

    @property
    def total_bytes(self) -> int:
        """Total estimated bytes on a device."""
        return sum(self.memory.values())

    @property
    def spare_bytes(self) -> int:
        """Free bytes of a device; negative if the layout does not fit."""
        return self.chip.memory_bytes - self.total_bytes

    @property
    def fits(self) -> bool:
        """Return whether a device's memory holds the layout."""
        return self.spare_bytes >= 0

    @property
    def requests_s(self) -> float:
        """Estimated throughput of the layout in requests per second."""
        return self.slots / self.request_s

    def refusal(self) -> str:
        """Return why the layout does not fit, with the numbers."""
        kinds = ", ".join(f"{kind} {size / GIB:.2f}" for kind, size in self.memory.items())
        return (
            f"{self.shape} needs about {self.total_bytes / GIB:.2f} GiB a device, but "
            f"a {self.chip.name} has {self.chip.memory_bytes / GIB:.2f} ({kinds}); split the "
            "weights (fsdp, tensor), take fewer slots or a smaller size"
        )


def abstract_layout(shape: MeshShape, table: Table = TABLE) -> Layout:
    """Return a layout of abstract devices, for shapes only."""
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
    """Estimate the memory of a layout, and the time of its steps and requests.

    Args:
        shape: mesh shape with every size set (`MeshShape.over`).
        slots: concurrent requests on the slice.
        launch: rows of one launch, including padding; None: all slots.
        table: sharding table of the layout, with a deployment's overrides.
    """
    layout = abstract_layout(shape, table)
    passes_estimated = [
        _of_pass(name, item, shape, layout, chip, slots, launch or slots, residency)
        for name, item in sketch.passes()
    ]
    first = passes_estimated[0]
    # Both passes share the slots, and one program runs at a time: the larger pass counts.
    memory = {kind: max(item.memory[kind] for item in passes_estimated) for kind in first.memory}
    passes = {name: run for item in passes_estimated for name, run in item.passes.items()}
    request_s = sum(item.request_s for item in passes_estimated)
    return replace(first, memory=memory, passes=passes, request_s=request_s)


def _of_pass(
    named: str, sketch: Sketch, shape: MeshShape, layout: Layout, chip: Chip,
    slots: int, rows: int, residency: Residency,
) -> Estimate:  # fmt: skip
    """Estimate the costs of one pass of a request.

    Args:
        named: prefix of its programs' names.
        rows: rows of one launch.
    """
    wires = Interconnect.of(chip, shape)
    steps = {
        step_kind: _pass(program, layout, wires, rows)
        for step_kind, (program, _) in sketch.steps.items()
    }
    encode, decode = (_pass(item, layout, wires, 1) for item in (sketch.encode, sketch.decode))
    modulations = {
        name: _pass(item, layout, wires, 1) for name, (item, _) in sketch.modulations.items()
    }
    denoise_s = sum(
        steps[step_kind].seconds * count for step_kind, (_, count) in sketch.steps.items()
    )
    conditions_s = sum(
        modulations[name].seconds * count for name, (_, count) in sketch.modulations.items()
    )
    return Estimate(
        shape,
        chip,
        slots,
        _memory(sketch, layout, chip, slots, rows, residency),
        {
            named + name: run
            for name, run in {**steps, **modulations, "encode": encode, "decode": decode}.items()
        },
        sketch.main_step_kind,
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
        device_flops = count * op.flops * times * part
        weights = tuple((axis, size) for axis, size in op.axes if axis in ("heads", "mlp"))
        moved = op.moved_bytes * times * part + op.weight_bytes * share(used, weights)
        flops += device_flops
        seconds += max(device_flops / rate, count * moved / wires.chip.memory_bytes_s)
    return Pass(flops, seconds, traffic(program, layout, wires, rows))


def _memory(
    sketch: Sketch, layout: Layout, chip: Chip, slots: int, rows: int, residency: Residency
) -> dict[str, int]:
    weights = weight_bytes(
        tuple(weight for weight in sketch.weights if residency.keeps(weight)), layout
    )
    turns = {name: weights.pop(name) for name in residency.swapped}
    if turns:
        weights[" or ".join(sorted(turns))] = max(turns.values())
    programs = [sketch.encode, sketch.decode, *(program for program, _ in sketch.steps.values())]
    return {
        **{f"weights of {name}": size for name, size in weights.items()},
        "rows": slots
        * (ROW_COPIES * row_bytes(sketch, layout) + CONDITIONS_COPIES * sketch.modulations_bytes),
        "temporaries": max(
            _temporaries(program, layout, rows, residency.on_host) for program in programs
        ),
        "reserve": int(RESERVE * chip.memory_bytes),
    }


def weight_bytes(weights: tuple[Weight, ...], layout: Layout) -> dict[str, int]:
    """Return the exact weight bytes on one device, by network."""
    sizes: Counter[str] = Counter()
    for weight in weights:
        sizes[weight.network] += weight.on_one(layout)
    return dict(sizes)


def row_bytes(sketch: Sketch, layout: Layout) -> int:
    """Return the exact bytes of a row on one device."""
    return sum(leaf.on_one(layout) for leaf in sketch.row)


def _temporaries(
    program: TracedProgram, layout: Layout, rows: int, on_host: frozenset[str] = frozenset()
) -> int:
    """Return a program's peak temporary bytes, including weights of gathered or loaded layers."""
    total = 0.0
    for axes, size in program.peak.items():
        times = rows if any(axis == "batch" for axis, _ in axes) else 1
        total += size * times * share(layout, scaled(axes, times))
    return int(total) + _gathered(program, layout, on_host)


def _gathered(program: TracedProgram, layout: Layout, on_host: frozenset[str]) -> int:
    """Return twice the bytes of the widest layer: the next is fetched while one is used."""
    used = layout.in_use()
    layers: Counter[tuple[str, int]] = Counter()
    for weight in program.weights:
        stored = layout.split(weight.axes, weight.shape)
        needed = used.split(weight.axes, weight.shape)
        if stored == needed and weight.network not in on_host:
            continue
        count = weight.shape[0] if weight.axes[:1] == ("layers",) else 1
        layer_bytes = weight.nbytes // used.devices(tuple(n for names in needed for n in names))
        layers[weight.network, count] += layer_bytes // count
    stacked = [size for (_, count), size in layers.items() if count > 1]
    alone = [size for (_, count), size in layers.items() if count == 1]
    return 2 * max(stacked, default=0) + max(alone, default=0)
