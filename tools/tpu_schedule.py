"""Print steps by the TPU compiler's own schedule; no TPU is needed.

--write puts them into docs/performance/schedule.json and docs/performance/speed.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tools import speed_page
from workers.plan import record
from workers.plan.cases import CASES, compiled, fingerprints
from workers.plan.report import versions
from workers.plan.schedule import Step, in_child, lines, read


def main(arguments: list[str] | None = None) -> None:
    """Compile the cases, and print or write what was scheduled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--longest", type=int, default=0, help="operations of each part to show")
    parser.add_argument("--no-attention", action="store_true", help="XLA's own operations alone")
    parser.add_argument("--text", type=Path, help="keep the programs' text in this folder")
    parser.add_argument("--read", type=Path, help="read it from there instead of compiling")
    parser.add_argument("--write", action="store_true", help="into docs/performance")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.cases) - set(CASES)):
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    read_from = [_text_of(asked.read, name) for name in asked.cases] if asked.read else []
    if absent := [file.stem for file in read_from if not file.is_file()]:
        parser.error(f"{asked.read} has no text of {', '.join(absent)}: --text keeps one there")
    if asked.write and (asked.read or asked.no_attention):
        parser.error("--write wants whole steps, compiled now")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    steps = []
    for name in asked.cases:
        file = _text_of(asked.read, name) if asked.read else None
        text = file.read_text() if file else in_child(compiled, CASES[name])
        if asked.text:
            asked.text.mkdir(parents=True, exist_ok=True)
            _text_of(asked.text, name).write_text(text)
        steps.append(read(name, text, attention=not asked.no_attention))
        print("\n".join(lines(steps[-1], asked.longest)), flush=True)
    if asked.write:
        _write(steps)


def _text_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.txt"


def _write(steps: Sequence[Step]) -> None:
    programs = in_child(fingerprints, [*CASES])
    records = record.with_steps(record.read(), steps, programs, versions())
    record.write(records)
    speed_page.write(records)


if __name__ == "__main__":
    main()
