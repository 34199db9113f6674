"""Generator of docs/performance/plans.md's tables: `python -m workers.plan.table [PLAN.json …]`.

It estimates layouts in seconds. Plans compiled by `atelier plan --json` (minutes each) are compared
with their estimates.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.plan.duration import duration
from workers.plan.estimate import Estimate
from workers.plan.make import PlanRequest, search_layouts, sketched
from workers.plan.report import versions
from workers.plan.search import SearchResults
from workers.plan.trace import Sketch
from workers.slice.chips import GIB
from workers.slice.topology import Topology

MODELS: Mapping[str, Mapping[str, int]] = {
    "sdxl": {"height": 1024, "width": 1024},
    "sdxl-controlnet": {"height": 1024, "width": 1024},
    "sdxl-refiner": {"height": 1024, "width": 1024},
    "flux-dev": {"height": 1024, "width": 1024},
    "flux-kontext": {"height": 1024, "width": 1024},
    "flux-fill": {"height": 1024, "width": 1024},
    "flux-canny": {"height": 1024, "width": 1024},
    "qwen-image": {"height": 1024, "width": 1024},
    "flux2-klein-4b": {"height": 1024, "width": 1024},
    "qwen-image-edit": {"height": 1024, "width": 1024},
    "qwen-image-edit-2511": {"height": 1024, "width": 1024},
    "z-image-turbo": {"height": 1024, "width": 1024},
    "z-image": {"height": 1024, "width": 1024},
    "ltx-2.3": {"height": 512, "width": 768, "num_frames": 121},
    "wan2.1-14b": {"height": 720, "width": 1280, "num_frames": 81},
    "wan2.1-vace-14b": {"height": 720, "width": 1280, "num_frames": 81},
    "wan2.2-animate-14b": {"height": 720, "width": 1280, "num_frames": 77},
}
TOPOLOGIES = ("v5e:2x4", "v6e:2x4", "v5p:2x2x2")

HEAD = "Made on {date} by `python -m workers.plan.table` with {versions}.\n"
COLUMNS = (
    "model and size",
    "chips",
    "best for",
    "layout",
    "slots",
    "a step",
    "a request",
    "requests/min",
    "exchange",
    "of the peak",
    "GiB a device (of)",
)


def rows(
    model: str, topology: Topology, sketch: Sketch, search_results: SearchResults
) -> Iterator[str]:
    """Yield the rows of the layout table for a model on a slice."""
    size = "x".join(str(value) for value in MODELS[model].values())
    for purpose, ranked in (
        ("latency", search_results.latency),
        ("throughput", search_results.throughput),
    ):
        best = row(sketch, ranked[0]) if ranked else f"none fits {'|' * 8}"
        yield f"| {model} {size} | {topology.name} | {purpose} | {best}"


def row(sketch: Sketch, candidate: Estimate) -> str:
    """Return the row of one estimated layout in the layout table."""
    work = sketch.steps[sketch.main_step_kind][0].work.flops * candidate.slots
    peak = work / (candidate.step_s * candidate.shape.devices * candidate.chip.peak_flops)
    cells = (
        str(candidate.shape),
        str(candidate.slots),
        duration(candidate.step_s),
        duration(candidate.request_s),
        f"{60 * candidate.requests_s:.3g}",
        f"{candidate.step.traffic_s / candidate.step_s:.0%}",
        f"{peak:.0%}",
        f"{candidate.total_bytes / GIB:.1f} ({candidate.chip.memory_bytes / GIB:.1f})",
    )
    return " | ".join(cells) + " |"


def compiled_rows(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table row for each program of a compiled plan's JSON."""
    sizes = {axis: size for axis, size in plan["mesh"]["ici"].items() if size > 1}
    layout = " · ".join(f"{axis} {size}" for axis, size in sizes.items())
    for program in plan["programs"]:
        compiler = program.get("compiler")
        if compiler is None:
            continue
        sent = sum(collective["ici_bytes"] for collective in program["collectives"]) / 1e6
        cells = (
            plan["model"],
            plan["topology"],
            layout,
            program["name"].split("|")[0],
            f"{compiler['argument_bytes'] / GIB:.2f}",
            f"{compiler['temporary_bytes'] / GIB:.3f}",
            f"{compiler['code_bytes'] / GIB:.3f}",
            f"{sent:.4g}",
            duration(program["seconds"]),
            duration(compiler["cycles_s"]) if compiler["cycles_s"] else "none",
            f"{compiler['compile_s']:.0f} s",
        )
        yield f"| {' | '.join(cells)} |"


COMPILED = (
    "model",
    "chips",
    "layout",
    "program",
    "arguments GiB",
    "temporaries GiB",
    "code GiB",
    "sent MB a device",
    "estimate",
    "compiler's sequential cycles",
    "compiled in",
)


def lines(plans: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the tables of estimated and compiled plans, in Markdown."""
    named = ", ".join(f"{name} {number}" for name, number in versions().items())
    yield HEAD.format(date=datetime.datetime.now(tz=datetime.UTC).date(), versions=named)
    yield from _table(COLUMNS)
    for model, size in MODELS.items():
        sketch: Sketch | None = None
        for name in TOPOLOGIES:
            plan_request = PlanRequest(model, Topology.parse(name), size)
            sketch = sketch or sketched(plan_request)
            yield from rows(
                model, plan_request.topology, sketch, search_layouts(plan_request, sketch)
            )
    if plans:
        yield ""
        yield from _table(COMPILED)
        for plan in plans:
            yield from compiled_rows(plan)


def _table(columns: tuple[str, ...]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)


if __name__ == "__main__":
    for line in lines([json.loads(Path(path).read_text()) for path in sys.argv[1:]]):
        print(line, flush=True)
