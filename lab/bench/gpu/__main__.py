"""Validate the demo's pixels on this machine's GPU, then compare Flux-dev, SDXL and Wan with
diffusers.

    make gpu                         # or: python3 -m lab.bench.gpu [--minutes 9] [--out build/gpu]
    make gpu ARGS="--from STAGE"     # on another machine, or again

Needs a Python with JAX and torch for the GPU. Other missing packages are read from the folder of
wheels that `make gpu-pack` writes. Without a GPU, tiny networks on a CPU test every stage but
measure nothing. A run is a piece of at most nine minutes; the next one continues where it ended, by
the folder of results or, without that, by `--from`.

Imports only the standard library until the first stage.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.bench.gpu.run import Budget, next_stage, run_all
from lab.bench.gpu.stages import FULL, TINY, Stage, fits_here, install_wheels, is_installed, stages
from lab.bench.gpu.table import line

Json = dict[str, Any]
NVIDIA_SMI = (
    "nvidia-smi", "--query-gpu=name,memory.total,driver_version,clocks.sm,temperature.gpu",
    "--format=csv,noheader",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Run the stages; returns 1 if a stage failed or was skipped."""
    args = parsed(words)
    budget = Budget(time.monotonic() + 60 * args.minutes)
    args.out.mkdir(parents=True, exist_ok=True)
    environment = prepared(args.wheels, args.out)
    machine_ = machine()
    results = args.out / "results.json"
    outcomes_by_stage = before(results, machine_["gpu"])

    def report(outcome: Json) -> None:
        outcomes_by_stage[outcome["stage"]] = outcome
        write(results, {"machine": machine_, "stages": [*outcomes_by_stage.values()]})
        print(line(outcome), flush=True)

    chosen = chosen_stages(args, machine_["gpu"])
    if args.first or args.only:
        for stage in chosen:
            outcomes_by_stage.pop(stage.name, None)
    outcomes = run_all(chosen, args.out, budget, environment, dict(outcomes_by_stage), report)
    print(f"{results}: {machine_['gpu'] or 'no GPU: a rehearsal, which says nothing of speed'}")
    if following := next_stage(outcomes):
        print(f'next piece: make gpu ARGS="--from {following}"')
    are_done = all(outcome_["state"] == "done" for outcome_ in outcomes)
    return 0 if are_done and len(outcomes) == len(chosen) else 1


def chosen_stages(args: argparse.Namespace, card: str | None) -> list[Stage]:
    """Stages by the options, in order. Exits: no such stage; names the stages."""
    every = stages(args.out.resolve(), TINY if card is None else FULL)
    names = [stage.name for stage in every]
    if args.first and args.first not in names:
        sys.exit(f"--from {args.first}: no such stage, but {', '.join(names)}")
    begin = names.index(args.first) if args.first else 0
    return [stage for stage in every[begin:] if args.only in stage.name]


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="of this piece (9)")
    parser.add_argument("--from", dest="first", default="", metavar="STAGE",
                        help="run this stage and those after it again")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="(build/gpu)")
    parser.add_argument("--wheels", type=Path, default=Path(".wheels"), help="(.wheels)")
    parser.add_argument("--only", default="", metavar="PART",
                        help="run the stages with this in their name again")  # fmt: skip
    return parser.parse_args(words)


def prepared(wheels: Path, out: Path) -> dict[str, str]:
    """Environment of the stages, with the missing packages on its path."""
    if not fits_here(wheels):
        version = platform.python_version()
        sys.exit(f"{wheels} is for another Python than {version}: make gpu-pack ARGS=--python=…")
    site = (out / "site").resolve()
    brought = install_wheels(wheels, site, is_installed)
    if brought:
        print(f"from {wheels}: {', '.join(brought)}", flush=True)
    path = [str(Path.cwd()), *([str(site)] if site.is_dir() else []), os.environ.get("PYTHONPATH")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str((out / "inductor").resolve()),
        # Two frameworks share the card, so neither may reserve all of it.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def machine() -> Json:
    return {
        "gpu": gpu(), "python": platform.python_version(), "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def gpu() -> str | None:
    """Name, memory, driver, clock and temperature of the GPU; None without a GPU."""
    if shutil.which(NVIDIA_SMI[0]) is None:
        return None
    process = subprocess.run(NVIDIA_SMI, capture_output=True, text=True)
    return process.stdout.strip() or None if process.returncode == 0 else None


def before(results: Path, card: str | None) -> dict[str, Json]:
    """Outcomes by stage of an earlier run on the same kind of card; empty if there was none."""
    if not results.is_file():
        return {}
    earlier = json.loads(results.read_text())
    if name_of(earlier["machine"]["gpu"]) != name_of(card):
        return {}
    return {outcome["stage"]: outcome for outcome in earlier["stages"]}


def name_of(card: str | None) -> str | None:
    return None if card is None else card.split(",")[0]


def write(file: Path, results_json: Json) -> None:
    """Write atomically, so that readers see the old or the new file."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(results_json, indent=1))
    new.replace(file)


if __name__ == "__main__":
    sys.exit(main())
