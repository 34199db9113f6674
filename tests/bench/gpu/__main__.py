"""Prove the demo's pixels on this machine's GPU, then time Flux-dev, SDXL and Wan beside diffusers.

    make gpu                     # or: python3 -m tests.bench.gpu [--minutes 24] [--out build/gpu]

Needs a Python with JAX and torch for the GPU; what else it lacks comes from the folder of wheels
that `make gpu-wheels` has made. Without a GPU it is a rehearsal: tiny networks, on the CPU, which
shows that all of it runs and says nothing of speed. Where a machine is lent for minutes at a time,
run it again: what is done in the folder of results is not repeated.

Standard library alone up to the first stage.
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

from tests.bench.gpu.bring import bring, fits_here, is_installed
from tests.bench.gpu.run import Budget, run_all
from tests.bench.gpu.stages import stages
from tests.bench.gpu.table import line

Json = dict[str, Any]
NVIDIA_SMI = (
    "nvidia-smi", "--query-gpu=name,memory.total,driver_version,clocks.sm,temperature.gpu",
    "--format=csv,noheader",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 1, a stage failed or was left out."""
    args = parsed(words)
    budget = Budget(time.monotonic() + 60 * args.minutes)
    args.out.mkdir(parents=True, exist_ok=True)
    environment = prepared(args.wheels, args.out)
    here = machine()
    results = args.out / "results.json"
    found = before(results, here["gpu"])

    def report(outcome: Json) -> None:
        found[outcome["stage"]] = outcome
        write(results, {"machine": here, "stages": [*found.values()]})
        print(line(outcome), flush=True)

    chosen = [stage for stage in stages(args.out.resolve(), rehearsal=here["gpu"] is None)
              if args.only in stage.name]  # fmt: skip
    outcomes = run_all(chosen, args.out, budget, environment, dict(found), report)
    print(f"{results}: {here['gpu'] or 'no GPU: a rehearsal, which says nothing of speed'}")
    return 0 if all(one["state"] == "done" for one in outcomes) else 1


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=24.0, help="for all of it (24)")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="(build/gpu)")
    parser.add_argument("--wheels", type=Path, default=Path(".wheels"), help="(.wheels)")
    parser.add_argument("--only", default="", metavar="PART", help="stages with this in their name")
    return parser.parse_args(words)


def prepared(wheels: Path, out: Path) -> dict[str, str]:
    """The stages' environment, with what this Python lacks on its path."""
    if not fits_here(wheels):
        version = platform.python_version()
        sys.exit(f"{wheels} is for another Python than {version}: make gpu-wheels ARGS=--python=…")
    site = (out / "site").resolve()
    brought = bring(wheels, site, is_installed)
    if brought:
        print(f"from {wheels}: {', '.join(brought)}", flush=True)
    path = [str(Path.cwd()), *([str(site)] if site.is_dir() else []), os.environ.get("PYTHONPATH")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str((out / "inductor").resolve()),
        # Two frameworks take turns in one process: none may take all of the card.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def machine() -> Json:
    return {
        "gpu": gpu(), "python": platform.python_version(), "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def gpu() -> str | None:
    """Name, memory, driver, clock and temperature; None: there is none."""
    if shutil.which(NVIDIA_SMI[0]) is None:
        return None
    asked = subprocess.run(NVIDIA_SMI, capture_output=True, text=True)
    return asked.stdout.strip() or None if asked.returncode == 0 else None


def before(results: Path, card: str | None) -> dict[str, Json]:
    """Outcomes by stage of an earlier run on the same kind of card; none: there is none."""
    if not results.is_file():
        return {}
    told = json.loads(results.read_text())
    if name_of(told["machine"]["gpu"]) != name_of(card):
        return {}
    return {outcome["stage"]: outcome for outcome in told["stages"]}


def name_of(card: str | None) -> str | None:
    return None if card is None else card.split(",")[0]


def write(file: Path, told: Json) -> None:
    """In one piece: who reads it meanwhile finds the one before."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(told, indent=1))
    new.replace(file)


if __name__ == "__main__":
    sys.exit(main())
