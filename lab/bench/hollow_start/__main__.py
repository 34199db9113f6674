"""Time of a pool's start, part by part, without reading weights. Not a test: run it on a quiet
machine.

    python -m lab.bench.hollow_start [flux-dev] [--dtype bfloat16] [--slots 4] [--rounds 3]

Starts a full-size model from real configs without its weights. On an accelerator, weights are
generated on the device; on a CPU they are untouched memory, which uses no space and reads as zeros.
The rest is a pool's start: imports, the planner, abstract networks, tokenizers of the published
sizes, the preview's fit, programs, and on an accelerator the trial steps. Each start is a process:
the first has empty caches, the others use them.

Not included: reading and sending weights (`lab.bench.loading`), Redis, the store, and on a CPU the
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
from lab.bench.hollow_start.parts import Parts, Times


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(start(options)))
        return
    check(options.model)
    with tempfile.TemporaryDirectory() as folder:
        from lab.bench.hollow_start.model import write

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
    """Check the model's name. Imports here, because imports of a start are measured. Raises:
    SystemExit."""
    from models.published import CHECKPOINTS

    names = [name for name in CHECKPOINTS if name.startswith("flux-")]
    if model not in names:
        raise SystemExit(f"no start of {model!r} is measured, but of {', '.join(names)}")


def in_process(folder: str) -> Times:
    command = [sys.executable, "-m", "lab.bench.hollow_start", *sys.argv[1:], "--child", folder]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    times: Times = json.loads(ended.stdout.splitlines()[-1])
    clock = sum(times[part][0] for part in times if not part.startswith(" "))
    print(f"a start of {clock:.1f} s", file=sys.stderr, flush=True)
    return times


def start(options: argparse.Namespace) -> Times:
    parts = Parts()
    parts.times["Python"] = 0.0, time.process_time()
    with parts.part("imports"):
        from lab.bench.hollow_start.start import started
    started(options.model, options.dtype, options.slots, options.child, parts)
    clock, processor = (
        sum(spent[kind] for part, spent in parts.times.items() if not part.startswith(" "))
        for kind in (0, 1)
    )
    return {**parts.times, "together": (clock, processor)}


def show(cold: Times, warm: list[Times]) -> None:
    """Print cold times, and median, minimum and maximum of warm times. An indented part is included
    in the row below it."""
    print(f"{'seconds':>24}   cold: clock, processor   warm: clock, processor")
    for part, (clock, processor) in cold.items():
        cells = [f"{clock:8.2f} {processor:8.2f}"]
        for kind in (0, 1):
            seconds = [times[part][kind] for times in warm]
            cells.append(f"{median(seconds):6.2f} ({min(seconds):.2f} to {max(seconds):.2f})")
        print(f"{part:>24}  {'   '.join(cells)}")


def show_kept(folder: Path) -> None:
    """Print the programs that warm starts found."""
    for file in sorted(folder.iterdir()):
        with file.open("rb") as content:
            content.readline()
            program = json.loads(content.readline())["key"]["program"]
        print(f"{file.stat().st_size / 1e6:10.2f} MB  {' '.join(program)}")


if __name__ == "__main__":
    main()
