"""Time of a pool from its command to its first claim. Not a test: run it on a quiet machine.

    python -m lab.bench.starting [FOLDER] [--rounds 3]

Starts `atelier worker` on a checkpoint (default: the demo Flux), alternating between empty caches,
JAX's compile cache only, executables in addition, and only executables made by `atelier compile`.
Prints seconds of wall clock and of the processor, also by phase; processor time is meaningful on a
shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from deploy.cli.options import count
from deploy.local import embedded_redis

ROOT = Path(__file__).parents[2]
READY = "is ready"
PHASE = "phase: "
MAIN = f"""
import sys, time
import atelier
from workers import metrics
plain = metrics.started

def record_phase(models, phase, since):
    print("{PHASE}", phase, time.process_time(), file=sys.stderr, flush=True)
    return plain(models, phase, since)

metrics.started = record_phase
sys.exit(atelier.main(sys.argv[1:]))
"""
"""Command line that logs processor seconds at the end of each phase of the start."""

Times = dict[str, float]


def main() -> None:
    options = arguments()
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded_redis.embedded(Path(folder) / "redis") as url,
    ):
        root = Path(folder)
        config = root / "atelier.toml"
        rows: list[dict[str, Times]] = []
        store = root / "made"
        config.write_text(settings(url, root / "building", options))
        compile_into(store, config)
        for number in range(options.rounds):
            state = root / str(number)
            config.write_text(settings(url, state, options))
            cold = start(config)
            start(
                config
            )  # uses all executables; they are moved away next, to test only JAX's cache
            shutil.move(state / "compile-cache" / "executables", root / "aside")
            compiled = start(config)
            shutil.rmtree(state / "compile-cache" / "executables", ignore_errors=True)
            shutil.move(root / "aside", state / "compile-cache" / "executables")
            row = {"cold": cold, "compile cache": compiled, "executables": start(config)}
            prefix = f"executables = {json.dumps(str(store))}\n"
            config.write_text(prefix + settings(url, root / f"{number}-made", options))
            rows.append({**row, "made elsewhere": start(config)})
            print(rows[-1], flush=True)
    for name in rows[0]:
        for kind in rows[0][name]:
            seconds = [row[name][kind] for row in rows]
            spread = f"({min(seconds):.1f} to {max(seconds):.1f})"
            print(f"{name:>14}, {kind:>9}: {median(seconds):5.1f} s {spread}")


def compile_into(store: Path, config: Path) -> None:
    """Make the executables for the last kind of start."""
    command = ("compile", "--model", "flux", "--topology", "cpu:1", "--out", str(store))
    environment = {**os.environ, "ATELIER_CONFIG": str(config)}
    subprocess.run([sys.executable, "atelier.py", *command], cwd=ROOT, env=environment, check=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=str(ROOT / "models" / "demo" / "flux"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=count, default=3)
    return parser.parse_args()


def settings(url: str, state: Path, options: argparse.Namespace) -> str:
    return (
        f"state_dir = {json.dumps(str(state))}\n"
        f"[redis]\nurl = {json.dumps(url)}\n"
        f"[models.flux]\nsource = {json.dumps(options.folder)}\n"
        f"dtype = {json.dumps(options.dtype)}\n"
        '[pools.flux]\nmodel = "flux"\nmetrics_port = 0\n'
    )


def start(config: Path) -> Times:
    """Start a worker; returns the seconds until it is ready: wall clock, processor, and by
    phase."""
    started = time.perf_counter()
    worker = subprocess.Popen(
        [sys.executable, "-c", MAIN, "worker", "--pool", "flux"],
        cwd=ROOT,
        env={**os.environ, "ATELIER_CONFIG": str(config)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stderr is not None
    log_lines = []
    for line in worker.stderr:
        log_lines.append(line)
        if READY in line:
            break
    else:
        raise SystemExit("".join(log_lines))
    times = {"clock": time.perf_counter() - started, "processor": processor_s(worker.pid)}
    worker.send_signal(signal.SIGTERM)
    worker.stderr.read()
    worker.wait()
    return {name: round(value, 2) for name, value in (times | by_phase(log_lines)).items()}


def by_phase(lines: Sequence[str]) -> Times:
    """Processor seconds of each phase."""
    times, previous_s = {}, 0.0
    for line in lines:
        if line.startswith(PHASE):
            _, name, ended_s = line.split()
            times[name], previous_s = float(ended_s) - previous_s, float(ended_s)
    return times


def processor_s(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
