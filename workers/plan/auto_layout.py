"""Layout of a pool with `mesh = "auto"`, and the memory check before it loads."""

from __future__ import annotations

import math
from collections.abc import Mapping

from models.parallel.axis_rules import TABLE, Table
from workers.plan.estimate import Estimate
from workers.plan.offload import ALL_ON_DEVICE, Residency
from workers.plan.search import search
from workers.plan.trace import Sketch
from workers.slice.chips import Chip
from workers.slice.topology import PlanError


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
