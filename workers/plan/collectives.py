"""Analytic cost of collectives: bytes that one device sends, and their time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from models.nn.attention.sharded import exchange
from models.parallel.axis_rules import Layout, MeshAxes
from models.parallel.mesh_axes import mesh_axes_of
from workers.jaxpr.operations import Exchange
from workers.plan.per_device import scaled, share, split_axes
from workers.plan.trace import TracedProgram, Weight
from workers.slice.chips import COLLECTIVE_S, Chip
from workers.slice.mesh_shape import MeshShape


@dataclass(frozen=True)
class Traffic:
    """Traffic of one kind of collective operation in a program."""

    name: str
    ici_bytes: float
    """Bytes that one device sends."""
    dcn_bytes: float
    count: float
    seconds: float

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.name,
            self.ici_bytes + other.ici_bytes,
            self.dcn_bytes + other.dcn_bytes,
            self.count + other.count,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class Interconnect:
    """Speeds of a chip's links, and the mesh axes that cross slices or hosts."""

    chip: Chip
    between: frozenset[str]

    @classmethod
    def of(cls, chip: Chip, shape: MeshShape) -> Interconnect:
        """Return a chip's interconnect, with the mesh axes that cross hosts."""
        crossing = {axis for axis, size in shape.dcn.items() if size > 1}
        if "context" in crossing:
            inside = shape.ring == shape.dcn["context"]
            crossing |= set(mesh_axes_of("context")[: 1 if inside else None])
        return cls(chip, frozenset(crossing))

    def send(self, name: str, sent: float, over: MeshAxes, count: float) -> Traffic:
        """Return the traffic of `count` collectives over mesh axes; a device sends `sent` bytes."""
        return self.sent(name, sent, count, crosses=any(axis in self.between for axis in over))

    def sent(self, name: str, sent: float, count: float, *, crosses: bool) -> Traffic:
        """Return the traffic of `count` collectives; the slowest link determines the time."""
        speed = self.chip.dcn_bytes_s if crosses else self.chip.ici_bytes_s
        seconds = count * (sent / speed + COLLECTIVE_S)
        total = count * sent
        return Traffic(name, 0 if crosses else total, total if crosses else 0, count, seconds)


def traffic(
    program: TracedProgram, layout: Layout, wires: Interconnect, rows: int
) -> Mapping[str, Traffic]:
    """Return the traffic of one run of a program, by kind."""
    total: dict[str, Traffic] = {}
    for item in _all(program, layout, wires, rows):
        if item.count and item.ici_bytes + item.dcn_bytes:
            total[item.name] = total[item.name] + item if item.name in total else item
    return total


def _all(
    program: TracedProgram, layout: Layout, wires: Interconnect, rows: int
) -> Iterable[Traffic]:
    for entry, count in program.work.exchanges.items():
        times = rows if any(axis == "batch" for axis, _ in entry.axes) else 1
        yield from _exchange(entry, count, layout, wires, times)
    yield _gathers(program.weights, layout, wires)


def _exchange(
    entry: Exchange, count: int, layout: Layout, wires: Interconnect, rows: int
) -> Iterable[Traffic]:
    axes = scaled(entry.axes, rows)
    local = entry.sent_bytes * rows * share(layout, axes)
    split = split_axes(layout, axes)
    if entry.kind == "attention":
        tokens = split["tokens"]
        rows_here = dict(axes).get("batch", 1)
        shared_axes = split.get("batch", ()) + split.get("heads", ())
        heads = rows_here * entry.heads // layout.devices(shared_axes)
        turns, swaps = exchange(layout, tokens, heads)
        here = entry.kv_bytes * rows * share(layout, axes)
        yield wires.send("all-to-all (Ulysses)", local * _lost(layout, swaps) / 4, swaps, 4 * count)
        passed = layout.devices(turns) - 1
        yield wires.send("permute (ring)", here / 2, turns, 2 * passed * count)
    elif entry.kind == "reduce":
        over = split_axes(layout, ((entry.on, _whole(layout, entry.on)),))[entry.on]
        over = tuple(name for name in over if not any(name in names for names in split.values()))
        yield wires.send("all-reduce", 2 * local * _lost(layout, over), over, count if over else 0)
    elif entry.kind == "halo":
        over = split[entry.on]
        parts = layout.devices(over)
        yield wires.send("permute (halo)", local * parts if parts > 1 else 0, over, 2 * count)
    else:
        over = tuple(name for names in split.values() for name in names)
        total = entry.sent_bytes * rows
        yield wires.send("all-gather (rows)", total * _lost(layout, over), over, count)


def _gathers(weights: tuple[Weight, ...], layout: Layout, wires: Interconnect) -> Traffic:
    """Return the all-gathers of weights that are split only in storage, before their layers run."""
    used = layout.in_use()
    axes: MeshAxes = ()
    received, count = 0.0, 0
    for weight in weights:
        stored = layout.split(weight.axes, weight.shape)
        needed = used.split(weight.axes, weight.shape)
        missing = weight.nbytes / _parts(used, needed) - weight.nbytes / _parts(layout, stored)
        if missing > 0:
            received += missing
            count += weight.shape[0] if weight.axes[:1] == ("layers",) else 1
            axes = tuple(name for names in stored for name in names)
    return wires.send("all-gather (weights)", received / max(count, 1), axes, count)


def _parts(layout: Layout, split: tuple[MeshAxes, ...]) -> int:
    return layout.devices(tuple(name for names in split for name in names))


def _lost(layout: Layout, over: MeshAxes) -> float:
    """Return the share of a device's bytes that the other devices need."""
    count = layout.devices(over)
    return (count - 1) / count


def _whole(layout: Layout, axis: str) -> int:
    """Return a divisible length for a logical axis of unknown size."""
    return layout.size(axis)
