"""The layout of a pool whose settings say `mesh = "auto"`, and the check before it loads."""

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
    """No layout of these devices holds the model; says what the smallest one lacks."""


def choose(
    sketch: Sketch,
    chip: Chip,
    devices: int,
    *,
    dcn: Mapping[str, int] | None = None,
    table: Table = TABLE,
    residency: Residency = ALL_ON_DEVICE,
) -> Estimate:
    """The layout that answers one request soonest, with its reason (`why`).

    Args:
        devices: of one host or slice; with `dcn`, of each of them.

    Raises: NothingFits: with the numbers of the layout that needs least.
    """
    found = search(sketch, chip, devices, dcn=dcn, table=table, residency=residency)
    if found.latency:
        return found.latency[0]
    count = devices * math.prod((dcn or {}).values())
    if not found.refused:
        raise NothingFits(f"{sketch.model} cannot be split over hosts by {dcn}")
    raise NothingFits(
        f"{sketch.model} does not fit {count} x {chip.name}: {found.refused[0].refusal()}"
    )
