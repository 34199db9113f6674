"""Generator of the tables in docs/performance/speed.md, from the TPU compiler's schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.tpu.cases import CASES
from lab.tpu.record import Record
from lab.tpu.schedule import KINDS, Part, Step
from models.spec.lora import PAGE_RANK
from workers.plan.duration import duration

PAGE = Path(__file__).parents[2] / "docs" / "performance" / "speed.md"
_TABLE = re.compile(r"(?<=<!-- schedule -->\n).*?(?=<!-- /schedule -->)", re.DOTALL)
COLUMNS = (
    "model and layout",
    "part",
    "products",
    "convolutions",
    "norms, RoPE, residuals",
    "copies",
    "together",
    "attention",
    "of the peak",
    "sent",
    "of the chip's limit",
)
KERNELS = ("attention of", "heads", "size", "queries", "keys", "a step", "of the peak")
"""Columns of the kernels' table. A head is of one image or video and one prompt, in one layer."""


def write(record: Record, page: Path = PAGE) -> None:
    """Write the tables into the page.

    Raises: ValueError: the page lacks the markers.
    """
    text, count = _TABLE.subn(lambda _: "\n".join(table(record)) + "\n", page.read_text())
    if count != 1:
        raise ValueError(f"{page} has no <!-- schedule --> and <!-- /schedule -->")
    page.write_text(text)


def table(record: Record) -> Iterator[str]:
    """Yield the lines of the schedules' tables."""
    named = ", ".join(f"{name} {number}" for name, number in record.versions.items())
    command = "make -C lab tpu-schedule ARGS=--write"
    yield f"Compiled, not timed on hardware, by `{command}` with {named}.\n"
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    steps = [record.steps[name] for name in CASES if name in record.steps]
    for step in steps:
        title = _title(step)
        for runs in sorted({part.runs for part in step.parts if part.runs > 1}, reverse=True):
            layers = [part for part in step.parts if part.runs == runs]
            yield _row(title, f"a layer, x {runs * len(layers)}", _mean(layers), "", "")
        peaks = f"{step.attention_peak:.1%}", f"{step.limit:.1%}"
        yield _row(title, "all of a step", _whole(step), *peaks)
    kernels = [row for step in steps for row in _kernels(step)]
    if kernels:
        yield from ["", f"| {' | '.join(KERNELS)} |", "|" + "---|" * len(KERNELS), *kernels]


def _title(step: Step) -> str:
    mesh = " · ".join(f"{axis} {size}" for axis, size in step.case.mesh.items())
    rank = PAGE_RANK * step.case.lora_pages
    adapters = f"adapters of rank {rank}" if rank else ""
    return ", ".join(filter(None, [step.case.model, step.case.topology, mesh, adapters]))


def _kernels(step: Step) -> Iterator[str]:
    for item in step.attention:
        peak = item.flops / (step.case.slice.chip.peak_flops * item.seconds)
        sizes = f"{item.heads:,} | {item.shape.dim} | {item.shape.queries:,} | {item.shape.keys:,}"
        yield f"| {_title(step)} | {sizes} | {duration(item.seconds)} | {peak:.1%} |"


def _whole(step: Step) -> Part:
    return _sum([(part, part.runs) for part in step.parts])


def _mean(layers: Sequence[Part]) -> Part:
    """Average loop bodies with the same number of runs."""
    return _sum([(part, 1 / len(layers)) for part in layers])


def _sum(parts: Sequence[tuple[Part, float]]) -> Part:
    """Sum parts of compiler schedules, each with its weight."""
    seconds = {
        kind: sum(times * part.seconds.get(kind, 0.0) for part, times in parts) for kind in KINDS
    }
    attention_s = sum(times * part.attention_s for part, times in parts)
    sent = sum(times * sum(part.sent_bytes.values()) for part, times in parts)
    return Part("", 1, seconds, attention_s, {"": sent}, ())


def _row(title: str, name: str, part: Part, peak: str, limit: str) -> str:
    times = [part.seconds.get(kind, 0.0) for kind in KINDS] + [part.xla_s, part.attention_s]
    sent = f"{sum(part.sent_bytes.values()) / 1e6:.0f} MB"
    return f"| {' | '.join([title, name, *map(duration, times), peak, sent, limit])} |"
