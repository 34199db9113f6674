"""Search over every layout of a slice, in order of cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from models.parallel.axis_rules import TABLE, Table
from models.parallel.mesh_axes import AXIS_NAMES
from workers.plan.estimate import Estimate, estimate
from workers.plan.explanation import why
from workers.plan.offload import ALL_ON_DEVICE, Residency
from workers.plan.trace import Sketch
from workers.slice.chips import Chip
from workers.slice.mesh_shape import MeshShape

TIE = 0.02
"""Estimates that differ by less say nothing about which is faster."""
LAST = ("fsdp", "tensor", "ring", "data")
"""Axes that a layout should have least of, where two tie: the first one first."""


@dataclass(frozen=True)
class Found:
    """Layouts of a slice, the best first."""

    latency: tuple[Estimate, ...]
    """Layouts that fit with one request at a time, by the time of that request."""
    throughput: tuple[Estimate, ...]
    """Layouts that fit with a request in each part of `data`, by requests a second."""
    refused: tuple[Estimate, ...]
    """Layouts that do not fit with one request, the smallest first."""


def search(
    sketch: Sketch,
    chip: Chip,
    devices: int,
    *,
    dcn: Mapping[str, int] | None = None,
    table: Table = TABLE,
    residency: Residency = ALL_ON_DEVICE,
) -> Found:
    """Reckon each layout of so many devices.

    Args:
        devices: of one slice or host; with `dcn`, of each of them.
        dcn: sizes of axes between slices or hosts.
    """
    every = list(shapes(sketch, devices, dcn or {}))

    def reckoned(shapes: Iterable[MeshShape], slots: Callable[[MeshShape], int]) -> list[Estimate]:
        return [
            estimate(sketch, shape, chip, slots(shape), table=table, residency=residency)
            for shape in shapes
        ]

    # One request alone has nothing for `data` to share out.
    alone = reckoned((one for one in every if one.size("data") == 1), lambda shape: 1)
    filled = reckoned(every, lambda shape: rows(sketch, shape))
    refused = sorted((one for one in alone if not one.fits), key=lambda one: one.total_bytes)
    return Found(
        _explained(ordered(alone, lambda one: one.request_s), sketch, refused),
        _explained(ordered(filled, lambda one: 1 / one.requests_s), sketch, refused),
        tuple(refused),
    )


def shapes(sketch: Sketch, devices: int, dcn: Mapping[str, int]) -> Iterator[MeshShape]:
    """Yield shapes with no idle device: cfg where guided, tensor where heads divide."""
    between = {axis: dcn.get(axis, 1) for axis in AXIS_NAMES}
    for sizes in factors(devices, len(AXIS_NAMES)):
        ici = dict(zip(AXIS_NAMES, sizes, strict=True))
        plain = MeshShape(ici, between)
        tensor, context = plain.size("tensor"), plain.size("context")
        if plain.size("cfg") > sketch.prompts or any(n % tensor for n in sketch.heads):
            continue
        for ring in factors(context, 2):
            yield replace(plain, ring=ring[0])


def rows(sketch: Sketch, shape: MeshShape) -> int:
    """Requests that fill a layout: one on each part of `data`, and of `cfg` where it idles."""
    return shape.size("data") * (shape.size("cfg") if sketch.prompts == 1 else 1)


def factors(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as so many factors, in order."""
    if parts == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in factors(number // first, parts - 1))


def ordered(reckoned: Iterable[Estimate], cost: Callable[[Estimate], float]) -> list[Estimate]:
    """Sort those that fit by cost; of those that tie, the simpler one first."""
    left = sorted((one for one in reckoned if one.fits), key=cost)
    result: list[Estimate] = []
    while left:
        limit = cost(left[0]) * (1 + TIE)
        tied = [one for one in left if cost(one) <= limit]
        result += sorted(tied, key=_plainness)
        left = left[len(tied) :]
    return result


def _plainness(one: Estimate) -> tuple[int, ...]:
    shape = one.shape
    return tuple((shape.ring or 1) if axis == "ring" else shape.size(axis) for axis in LAST)


def _explained(
    found: list[Estimate], sketch: Sketch, refused: list[Estimate]
) -> tuple[Estimate, ...]:
    return tuple(replace(one, why=why(one, sketch, refused)) for one in found)
