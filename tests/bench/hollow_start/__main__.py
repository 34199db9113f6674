"""What a start takes beside reading the weights, part by part. No test: run it on a quiet machine.

    python -m tests.bench.hollow_start [flux-dev] [--dtype bfloat16] [--slots 4] [--rounds 3]

A full-size model of real configs, of which no weight is read: on an accelerator weights are drawn
where they lie, on a CPU they are memory that nobody has touched, which takes no room and reads as
zeros. All else is a pool's start: imports, the planner, abstract networks, tokenizers of the
published sizes, the fit of previews, programs, and on an accelerator the trial steps. Each start is
a process of its own: the first finds nothing kept, the others what it has kept.

Not in here: reading and sending weights (`tests.bench.loading`), Redis, the store, and on a CPU the
trial steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from deploy.cli.options import count
from tests.bench.hollow_start.parts import Parts, Times


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(start(options)))
        return
    check(options.model)
    with tempfile.TemporaryDirectory() as folder:
        from tests.bench.hollow_start.model import write

        write(options.model, Path(folder) / "model")
        cold, *warm = (in_process(folder) for _ in range(options.rounds + 1))
        show(cold, warm)
        show_kept(Path(folder) / "kept" / "executables")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "model", nargs="?", default="flux-dev", help="a published Flux's short name"
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--slots", type=int, default=4, help="batch sizes up to that are compiled")
    parser.add_argument("--rounds", type=count, default=3, help="warm starts")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def check(model: str) -> None:
    """Imported here: what a start imports is measured. Raises: SystemExit."""
    from models.published import CHECKPOINTS

    names = [name for name in CHECKPOINTS if name.startswith("flux-")]
    if model not in names:
        raise SystemExit(f"no start of {model!r} is measured, but of {', '.join(names)}")


def in_process(folder: str) -> Times:
    command = [sys.executable, "-m", "tests.bench.hollow_start", *sys.argv[1:], "--child", folder]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    times: Times = json.loads(ended.stdout.splitlines()[-1])
    clock = sum(times[part][0] for part in times if not part.startswith(" "))
    print(f"a start of {clock:.1f} s", file=sys.stderr, flush=True)
    return times


def start(options: argparse.Namespace) -> Times:
    parts = Parts()
    parts.times["Python"] = 0.0, time.process_time()
    with parts.part("imports"):
        from tests.bench.hollow_start.start import started
    started(options.model, options.dtype, options.slots, options.child, parts)
    clock, processor = (
        sum(spent[kind] for part, spent in parts.times.items() if not part.startswith(" "))
        for kind in (0, 1)
    )
    return {**parts.times, "together": (clock, processor)}


def show(cold: Times, warm: list[Times]) -> None:
    """Of the warm starts medians, and the lowest and highest. What is set in is part of the row
    below it."""
    print(f"{'seconds':>24}   cold: clock, processor   warm: clock, processor")
    for part, (clock, processor) in cold.items():
        told = [f"{clock:8.2f} {processor:8.2f}"]
        for kind in (0, 1):
            seconds = [times[part][kind] for times in warm]
            told.append(f"{median(seconds):6.2f} ({min(seconds):.2f} to {max(seconds):.2f})")
        print(f"{part:>24}  {'   '.join(told)}")


def show_kept(folder: Path) -> None:
    """What the warm starts found."""
    for file in sorted(folder.iterdir()):
        with file.open("rb") as content:
            content.readline()
            program = json.loads(content.readline())["key"]["program"]
        print(f"{file.stat().st_size / 1e6:10.2f} MB  {' '.join(program)}")


if __name__ == "__main__":
    main()
