"""The table of docs/speed.md that the TPU compiler's schedule makes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from workers.plan.duration import duration
from workers.plan.report import versions
from workers.plan.schedule import KINDS, Part, Step

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
_TABLE = re.compile(r"(?<=<!-- schedule -->\n).*?(?=<!-- /schedule -->)", re.DOTALL)
COLUMNS = (
    "model and layout",
    "part",
    "products",
    "norms, RoPE, residuals",
    "copies",
    "together",
    "attention",
    "of the peak",
    "sent",
)


def write(steps: Sequence[Step], page: Path = PAGE) -> None:
    """Raises: ValueError: the page has no place for the table."""
    text, found = _TABLE.subn(lambda _: "\n".join(table(steps)) + "\n", page.read_text())
    if found != 1:
        raise ValueError(f"{page} has no <!-- schedule --> and <!-- /schedule -->")
    page.write_text(text)


def table(steps: Sequence[Step]) -> Iterator[str]:
    named = ", ".join(f"{name} {number}" for name, number in versions().items())
    yield f"Compiled, not timed on hardware, by `make tpu-schedule ARGS=--write` with {named}.\n"
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for step in steps:
        mesh = " · ".join(f"{axis} {size}" for axis, size in step.case.mesh.items())
        title = f"{step.case.model}, {step.case.topology}, {mesh}"
        for part in step.parts:
            if part.runs > 1 and step.case.stage == "step":
                yield _row(title, f"a layer, x {part.runs}", part, "")
        peak = f"{step.attention_peak:.1%}" if step.attention_s else ""
        yield _row(title, f"all of a {step.case.stage}", _whole(step), peak)


def _whole(step: Step) -> Part:
    seconds = {kind: sum(part.runs * part.seconds[kind] for part in step.parts) for kind in KINDS}
    return Part("", 1, seconds, step.attention_s, {"": step.sent_bytes}, ())


def _row(title: str, name: str, part: Part, peak: str) -> str:
    times = [part.seconds[kind] for kind in KINDS] + [part.xla_s, part.attention_s]
    sent = f"{sum(part.sent_bytes.values()) / 1e6:.0f} MB"
    return f"| {' | '.join([title, name, *map(duration, times), peak, sent])} |"
