"""Print the TPU compiler's schedule of full-size steps; needs no TPU.

--write stores them in docs/performance/schedule.json and docs/performance/speed.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from lab.tpu import page, record
from lab.tpu.cases import CASES, compiled, fingerprints
from lab.tpu.schedule import Step, in_child, lines, read
from workers.plan.report import versions


def main(arguments: list[str] | None = None) -> None:
    """Compile the cases, and print or write their schedules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--longest", type=int, default=0, help="operations of each part to show")
    parser.add_argument("--no-attention", action="store_true", help="XLA's own operations alone")
    parser.add_argument("--text", type=Path, help="keep the programs' text in this folder")
    parser.add_argument("--read", type=Path, help="read it from there instead of compiling")
    parser.add_argument("--write", action="store_true", help="into docs/performance")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.cases) - set(CASES)):
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    read_from = [_text_of(options.read, name) for name in options.cases] if options.read else []
    if absent := [file.stem for file in read_from if not file.is_file()]:
        parser.error(f"{options.read} has no text of {', '.join(absent)}: --text keeps one there")
    if options.write and (options.read or options.no_attention):
        parser.error("--write needs whole steps, compiled now")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    steps = []
    for name in options.cases:
        file = _text_of(options.read, name) if options.read else None
        text = file.read_text() if file else in_child(compiled, CASES[name])
        if options.text:
            options.text.mkdir(parents=True, exist_ok=True)
            _text_of(options.text, name).write_text(text)
        steps.append(read(name, text, attention=not options.no_attention))
        print("\n".join(lines(steps[-1], options.longest)), flush=True)
    if options.write:
        _write(steps)


def _text_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.txt"


def _write(steps: Sequence[Step]) -> None:
    programs = in_child(fingerprints, [*CASES])
    records = record.with_steps(record.read(), steps, programs, versions())
    record.write(records)
    page.write(records)


if __name__ == "__main__":
    main()
