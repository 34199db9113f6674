"""Table of the comparison with diffusers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.bench.engine.table import shown
from deploy.bench.serving.compare import spread
from lab.bench.against.compare import STAGES

Json = Mapping[str, Any]


def show(results: Sequence[Json], console: Console) -> None:
    for result in results:
        if not result["theirs"]:
            continue  # interrupted before their turn; the JSON has our results
        console.print(table(result))
        for line in notes(result):
            console.print(line, markup=False, highlight=False)


def table(result: Json) -> Table:
    table_ = Table("", "ours", "theirs", "theirs / ours (all turns)", title=result["model"])
    for stage in STAGES:
        ours, theirs = (
            median(time for turn in result[side] for time in turn["seconds"][stage])
            for side in ("ours", "theirs")
        )
        table_.add_row(stage, shown(ours), shown(theirs), spread(result["ratios"][stage]))
    table_.add_row(
        "MFU of the loop", *(f"{result['mfu'][side]:.1%}" for side in ("ours", "theirs")), ""
    )
    table_.add_row(
        "peak memory", *(memory(result["peak_bytes"][side]) for side in ("ours", "theirs")), ""
    )
    return table_


def memory(size: int | None) -> str:
    return "not counted" if size is None else f"{size / 2**30:.2f} GiB"


def notes(result: Json) -> list[str]:
    ours, theirs = result["ours"][0], result["theirs"][0]
    tiny = "; tiny networks: of speed this says nothing" if ours["tiny"] else ""
    versions = {**ours["versions"], **theirs["versions"]}
    return [
        f"{theirs['chip']}, {ours['bucket']}, {ours['steps']} steps, {ours['dtype']};"
        f" {len(result['ours'])} turns each of {len(ours['seconds']['step'])} requests{tiny}",
        f"theirs: {theirs['how']}, attention {theirs['attention']}; a step is"
        f" {ours['step_flops']:.4g} FLOP by our count, {theirs['step_flops']:.4g} by torch's;"
        f" MFU of {result['matrix_flops'] / 1e12:.3g} TFLOP/s, measured in this run",
        ", ".join(f"{name} {number}" for name, number in versions.items() if number),
    ]
