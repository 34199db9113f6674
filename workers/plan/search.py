"""Exhaustive search over the layouts of a slice, ranked by cost; the best one states its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from models.parallel.axis_rules import TABLE, Table
from models.parallel.mesh_axes import AXIS_NAMES
from workers.plan.duration import duration
from workers.plan.estimate import Estimate, estimate
from workers.plan.offload import ALL_ON_DEVICE, Residency
from workers.plan.trace import Sketch
from workers.slice.chips import GIB, Chip
from workers.slice.mesh_shape import MeshShape
from workers.slice.topology import PlanError


def why(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    """Explain the chosen layout: the purpose of each split axis, estimated time and memory."""
    reasons = [
        reason(chosen, sketch, refused) for reason in (_cfg, _context, _tensor, _fsdp, _data)
    ]
    parts = "; ".join(part for part in reasons if part) or "nothing is split"
    return (
        f"{parts}; estimated {duration(chosen.step_s)} a step, of "
        f"which {duration(chosen.step.traffic_s)} are for exchange, and "
        f"{chosen.total_bytes / GIB:.1f} of {chosen.chip.memory_bytes / GIB:.1f} GiB a device"
    )


def _cfg(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("cfg")
    if size == 1:
        return ""
    if sketch.prompts == 1:
        return "without guidance cfg serves rows"
    return f"cfg {size} halves each step's two guidance passes for one small exchange"


def _context(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("context")
    if size == 1:
        return ""
    how = "a ring" if chosen.shape.ring == size else "Ulysses" if chosen.shape.ring == 1 else "both"
    return f"context {size} shares {sketch.tokens} tokens by {how}"


def _tensor(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("tensor")
    return f"tensor {size} splits heads and feed-forward with their weights" if size > 1 else ""


def _fsdp(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("fsdp")
    if size == 1:
        return ""
    smaller = [estimate for estimate in refused if estimate.shape.size("fsdp") < size]
    if not smaller:
        return f"fsdp {size} spreads weights of {sum(sketch.networks.values()) / GIB:.1f} GiB"
    least = min(estimate.total_bytes for estimate in smaller) / GIB
    limit = chosen.chip.memory_bytes / GIB
    return f"fsdp {size} because with less a device would need {least:.1f} of {limit:.1f} GiB"


def _data(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("data")
    return f"data {size} runs {size} requests in parallel" if size > 1 else ""


TIE = 0.02
"""Estimates with a smaller relative difference count as equal."""
LAST = ("fsdp", "tensor", "ring", "data")
"""Axes to minimize among equal layouts, most important first."""


@dataclass(frozen=True)
class SearchResults:
    """Search result: layouts of a slice, ranked by latency and by throughput."""

    latency: tuple[Estimate, ...]
    """Layouts that fit one request at a time, by its duration."""
    throughput: tuple[Estimate, ...]
    """Layouts that fit a request in each part of `data`, by requests per second."""
    refused: tuple[Estimate, ...]
    """Layouts too small for one request, by memory."""


def search(
    sketch: Sketch,
    chip: Chip,
    devices: int,
    *,
    dcn: Mapping[str, int] | None = None,
    table: Table = TABLE,
    residency: Residency = ALL_ON_DEVICE,
) -> SearchResults:
    """Estimate every layout of a slice.

    Args:
        devices: number of devices of one slice or host; with `dcn`, of each.
        dcn: sizes of axes between slices or hosts.
    """
    every = list(shapes(sketch, devices, dcn or {}))

    def estimated(shapes: Iterable[MeshShape], slots: Callable[[MeshShape], int]) -> list[Estimate]:
        return [
            estimate(sketch, shape, chip, slots(shape), table=table, residency=residency)
            for shape in shapes
        ]

    # `data` cannot split a single request.
    alone = estimated((item for item in every if item.size("data") == 1), lambda shape: 1)
    filled = estimated(every, lambda shape: rows(sketch, shape))
    refused = sorted((item for item in alone if not item.fits), key=lambda item: item.total_bytes)
    return SearchResults(
        _explained(ordered(alone, lambda item: item.request_s), sketch, refused),
        _explained(ordered(filled, lambda item: 1 / item.requests_s), sketch, refused),
        tuple(refused),
    )


def shapes(sketch: Sketch, devices: int, dcn: Mapping[str, int]) -> Iterator[MeshShape]:
    """Yield mesh shapes without idle devices: cfg with guidance, tensor if it divides the heads."""
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
    """Return the number of concurrent requests that fill a layout: one per part of `data`.

    An unused `cfg` axis counts, too.
    """
    return shape.size("data") * (shape.size("cfg") if sketch.prompts == 1 else 1)


def factors(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every ordered factorization of a number into `parts` factors."""
    if parts == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in factors(number // first, parts - 1))


def ordered(estimated: Iterable[Estimate], cost: Callable[[Estimate], float]) -> list[Estimate]:
    """Sort the estimated layouts that fit by cost; of equal ones, the simpler first."""
    left = sorted((candidate for candidate in estimated if candidate.fits), key=cost)
    result: list[Estimate] = []
    while left:
        limit = cost(left[0]) * (1 + TIE)
        tied = [candidate for candidate in left if cost(candidate) <= limit]
        result += sorted(tied, key=_plainness)
        left = left[len(tied) :]
    return result


def _plainness(candidate: Estimate) -> tuple[int, ...]:
    shape = candidate.shape
    return tuple((shape.ring or 1) if axis == "ring" else shape.size(axis) for axis in LAST)


def _explained(
    ranked: list[Estimate], sketch: Sketch, refused: list[Estimate]
) -> tuple[Estimate, ...]:
    return tuple(replace(candidate, why=why(candidate, sketch, refused)) for candidate in ranked)


class NothingFits(PlanError):
    """Error if no layout of these devices holds the model; states what the smallest lacks."""


def choose(
    sketch: Sketch,
    chip: Chip,
    devices: int,
    *,
    dcn: Mapping[str, int] | None = None,
    table: Table = TABLE,
    residency: Residency = ALL_ON_DEVICE,
) -> Estimate:
    """Return the layout with the lowest latency of a request, with its reason (`why`).

    Args:
        devices: number of devices of one host or slice; with `dcn`, of each.

    Raises: NothingFits: states the numbers of the smallest layout.
    """
    results = search(sketch, chip, devices, dcn=dcn, table=table, residency=residency)
    if results.latency:
        return results.latency[0]
    count = devices * math.prod((dcn or {}).values())
    if not results.refused:
        raise NothingFits(f"{sketch.model} cannot be split over hosts by {dcn}")
    raise NothingFits(
        f"{sketch.model} does not fit {count} x {chip.name}: {results.refused[0].refusal()}"
    )
