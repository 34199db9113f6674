"""The comparison for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.bench.engine.table import shown
from tests.bench.against.compare import STAGES

Json = Mapping[str, Any]


def show(found: Sequence[Json], console: Console) -> None:
    for one in found:
        if not one["theirs"]:
            continue  # ended before theirs: its JSON has ours
        console.print(table(one))
        for line in notes(one):
            console.print(line, markup=False, highlight=False)


def table(one: Json) -> Table:
    made = Table("", "ours", "theirs", "theirs / ours (all turns)", title=one["model"])
    for stage in STAGES:
        ours, theirs = (
            median(time for turn in one[side] for time in turn["seconds"][stage])
            for side in ("ours", "theirs")
        )
        made.add_row(stage, shown(ours), shown(theirs), spread(one["ratios"][stage]))
    made.add_row("MFU of the loop", *(f"{one['mfu'][side]:.1%}" for side in ("ours", "theirs")), "")
    made.add_row(
        "peak memory", *(memory(one["peak_bytes"][side]) for side in ("ours", "theirs")), ""
    )
    return made


def spread(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def memory(size: int | None) -> str:
    return "not counted" if size is None else f"{size / 2**30:.2f} GiB"


def notes(one: Json) -> list[str]:
    ours, theirs = one["ours"][0], one["theirs"][0]
    tiny = "; tiny networks: of speed this says nothing" if ours["tiny"] else ""
    versions = {**ours["versions"], **theirs["versions"]}
    return [
        f"{theirs['chip']}, {ours['bucket']}, {ours['steps']} steps, {ours['dtype']};"
        f" {len(one['ours'])} turns each of {len(ours['seconds']['step'])} requests{tiny}",
        f"theirs: {theirs['how']}, attention {theirs['attention']}; a step is"
        f" {ours['step_flops']:.4g} FLOP by our count, {theirs['step_flops']:.4g} by torch's;"
        f" MFU of {one['matrix_flops'] / 1e12:.3g} TFLOP/s, measured in this run",
        ", ".join(f"{name} {number}" for name, number in versions.items() if number),
    ]
