"""Model and chips of each overlay, with the planner's figures. `python -m tests.deploy.k8s.plans`
prints the rows of docs/operations/gke.md."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from models.parallel.mesh_axes import CROSSING
from workers.plan.duration import duration
from workers.plan.estimate import Estimate
from workers.plan.make import PlanRequest, sketched
from workers.plan.search import search
from workers.plan.trace import Sketch
from workers.slice.chips import CHIPS, GIB, Chip
from workers.slice.topology import Topology

PICTURE: Mapping[str, Any] = {"width": 1024, "height": 1024}
CLIP: Mapping[str, Any] = {"width": 1280, "height": 720, "num_frames": 81}


@dataclass(frozen=True)
class Case:
    """Model, size and chips of an overlay."""

    overlay: str
    model: str
    """Name in `atelier plan`."""
    size: str
    chip: Chip
    devices: int
    """Devices per host."""
    hosts: int = 1

    def __str__(self) -> str:
        return self.overlay


CASES = (
    Case("gke-tpu-v5e", "sdxl", "1024x1024", CHIPS["v5e"], 8),
    Case("gke-tpu-v6e", "flux-dev", "1024x1024", CHIPS["v6e"], 8),
    Case("gke-tpu-multihost", "wan2.1-14b", "1280x720, 81 frames", CHIPS["v6e"], 4, hosts=4),
    Case("gke-tpu-v5p", "flux-dev", "1024x1024", CHIPS["v5p"], 4),
    Case("gke-tpu-7x", "wan2.2-a14b", "1280x720, 81 frames", CHIPS["tpu7x"], 8),
    Case("gke-gpu-h100", "flux-dev", "1024x1024", CHIPS["h100"], 1),
    Case("gke-gpu-h200", "wan2.2-a14b", "1280x720, 81 frames", CHIPS["h200"], 8),
)


@cache
def sketch_of(model: str) -> Sketch:
    """Sketch of a model, independent of the chip; takes a second or more."""
    request = CLIP if model.startswith("wan") else PICTURE
    return sketched(PlanRequest(model, Topology.parse("v6e:1x1"), request, dtype="bfloat16"))


@cache
def best(case: Case) -> Estimate:
    """The layout with the lowest latency, as `mesh = "auto"` chooses it; one axis spans the
    hosts."""
    between = [{axis: case.hosts} for axis in CROSSING] if case.hosts > 1 else [{}]
    rankings = [
        search(sketch_of(case.model), case.chip, case.devices, dcn=dcn).latency for dcn in between
    ]
    return min(
        (ranked[0] for ranked in rankings if ranked), key=lambda estimate_: estimate_.request_s
    )


def row(case: Case) -> str:
    """A row of docs/operations/gke.md."""
    planned = best(case)
    cells = (
        f"`{case.overlay}`",
        f"{case.model}, {case.size}",
        f"{case.devices * case.hosts} {case.chip.name}",
        str(planned.shape),
        f"{planned.total_bytes / GIB:.1f} of {case.chip.memory_bytes / GIB:.1f} GiB",
        duration(planned.request_s),
        f"{60 * planned.requests_s:.3g}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.writelines(f"{row(case)}\n" for case in CASES)
