"""Measure which tests detect the faults: `python -m tests.mutants [--only ID …] [--shard K/N]`.

Each fault is applied alone to a copy of the tracked tree. The gate's tests that import the changed
file run until one fails; if none fails, the suite's other tests run. At the end, the tests that
failed run without a fault; those that still fail detect nothing, and their faults run again without
them. Rows go to `build/mutants.csv`. Faults with a row are skipped, so the same command resumes an
interrupted run; delete the file to start over.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest

from tests.mutants.choice import Choice
from tests.mutants.faults import Fault, read

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "build" / "mutants.csv"
NIGHTLY = "nightly"
"""Marker of the tests that only the suite runs."""
TIERS = {"gate": f"not {NIGHTLY}", "suite": NIGHTLY}
"""Tests of each verdict, as an expression for pytest's `-m`."""
SHARE = 0.95
"""Minimum share of the faults detected by any test that the gate must detect."""
FIRST_FILES = 2
"""Test files of a fault's first run of pytest; each further run has twice as many."""
TEST_S, ENDING_S = 180, 20
"""Time limits in seconds of a test, and of pytest's teardown after an interrupt."""
PATIENCE = 12
"""Wall seconds that a run may last for each CPU-second of its limit."""
LOOPS, LOOPS_S = 5_000_000, 0.13
"""Additions of a loop, and their CPU-seconds on the machine for which `--cap` is given."""
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, -signal.SIGXCPU)
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """Result of one fault."""

    id: str
    verdict: str
    """`gate` or `suite`: tier of the test that detects the fault; `none`: all tests that import the
    file passed; `cap`: the time ran out first; `unfair`: a file cannot be collected."""
    test: str
    """Test that detects the fault."""
    files: str
    """Number of test files that ran, of those that import the changed file."""
    cpu_s: float


class Runner:
    """Runs tests in a copy of the tree.

    Args:
        cap_s: CPU-seconds for a fault's tests of one tier.
    """

    def __init__(self, tree: Path, cap_s: float) -> None:
        self._tree, self._cap_s = tree, cap_s
        self._choice = Choice(tree)
        self.unsound: set[str] = set()
        """Tests that fail without any fault."""

    def row(self, fault: Fault) -> Row:
        """Run the tests of a fault."""
        started_s, tests = _cpu_s(), self._choice.of(fault)
        verdict, test, files_run = "none", "", 0
        with self._applied(fault):
            for tier, marker in TIERS.items():
                test, files_run = self._found(tests, marker)
                if test:
                    verdict = tier if "::" in test else "unfair"
                    break
                if files_run < len(tests):
                    verdict = "cap"
        return Row(
            fault.id, verdict, test, f"{files_run}/{len(tests)}", round(_cpu_s() - started_s, 1)
        )

    def check(self, tests: Iterable[str]) -> None:
        """Record which of the tests fail without a fault."""
        if tests_to_run := sorted(test for test in tests if "::" in test):
            self.unsound |= set(self._failing(tests_to_run, [], 100 * self._cap_s))

    def _found(self, tests: Sequence[str], marked: str) -> tuple[str, int]:
        """Return the failing test, or "", and the number of files tried."""
        until_s, at, count = _cpu_s() + self._cap_s, 0, FIRST_FILES
        without = [f"--deselect={test}" for test in sorted(self.unsound)]
        while at < len(tests) and (left_s := until_s - _cpu_s()) > 1:
            batch, at, count = tests[at : at + count], at + count, 2 * count
            if failures := self._failing(batch, ["-x", "-m", marked, *without], left_s):
                return failures[0], min(at, len(tests))
        return "", min(at, len(tests))

    @contextmanager
    def _applied(self, fault: Fault) -> Iterator[None]:
        file = self._tree / fault.file
        text = file.read_text("utf-8")
        file.write_text(fault.applied(text), "utf-8")
        try:
            yield
        finally:
            file.write_text(text, "utf-8")

    def _failing(self, tests: Sequence[str], options: Sequence[str], cpu_s: float) -> list[str]:
        """Run tests; return those that fail, and files that cannot be collected."""
        options = [*options, "-q", "-rfE", "-p", "no:cacheprovider", f"--timeout={TEST_S}"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        variables = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(self._tree), "COLUMNS": "1000"}
        limit_s = round(cpu_s) + 1
        # A file, because a process that outlives pytest would keep a pipe open.
        with (
            tempfile.TemporaryFile() as output,
            subprocess.Popen(
                command,
                cwd=self._tree,
                env=os.environ | variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5)),
            ) as process,
        ):
            try:
                process.wait(PATIENCE * limit_s)
            except subprocess.TimeoutExpired:
                return []
            finally:
                _end(process)
            output.seek(0)
            failed = FAILED.findall(output.read().decode(errors="replace"))
        return failed if failed or process.returncode in PASSED else ["pytest"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt pytest so that it stops what it started; then kill the remaining processes."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def slowness() -> float:
    """Return how many times as much CPU time a loop takes here as on a fast machine, at least 1."""
    before, total = time.process_time(), 0
    for number in range(LOOPS):
        total += number
    return max(1.0, (time.process_time() - before) / LOOPS_S)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def copied(root: Path = ROOT) -> Iterator[Path]:
    """Copy the tracked files of a tree in their current state."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, Path(folder) / name)
        yield Path(folder)


def rows() -> dict[str, Row]:
    """Read the latest result of each fault."""
    if not ROWS.exists():
        return {}
    with ROWS.open(newline="") as file:
        results = [Row(**row | {"cpu_s": float(row["cpu_s"])}) for row in csv.DictReader(file)]
    return {row.id: row for row in results}


def add(row: Row) -> None:
    """Append a result."""
    ROWS.parent.mkdir(exist_ok=True)
    is_new = not ROWS.exists()
    with ROWS.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))
    print(*asdict(row).values(), sep="  ", flush=True)


def table(faults: Sequence[Fault], results: dict[str, Row]) -> str:
    """Return the verdicts by room, and the gate's share."""
    kinds = (*TIERS, "none", "cap", "unfair")
    by_room: dict[str, Counter[str]] = defaultdict(Counter)
    for fault in faults:
        if fault.id in results:
            by_room[fault.room][results[fault.id].verdict] += 1
    totals = sum(by_room.values(), Counter[str]())
    lines = [f"{'room':<22}" + "".join(f"{kind:>8}" for kind in kinds)]
    for room, counts in [*sorted(by_room.items()), ("all", totals)]:
        lines.append(f"{room:<22}" + "".join(f"{counts[kind]:>8}" for kind in kinds))
    share = totals["gate"] / max(1, totals["gate"] + totals["suite"])
    minutes = sum(row.cpu_s for row in results.values()) / 60
    summary = f"the gate finds {share:.1%} of what any test finds (at least {SHARE:.0%})"
    return "\n".join([*lines, f"{summary}; {minutes:.0f} CPU-minutes"])


def run(faults: Sequence[Fault], tree: Path, cap_s: float, done: Container[str]) -> None:
    """Run the faults that are not done, then check the tests that failed."""
    runner, todo = Runner(tree, cap_s), [fault for fault in faults if fault.id not in done]
    while todo:
        for fault in todo:
            add(runner.row(fault))
        results = rows()
        runner.check({results[fault.id].test for fault in faults} - runner.unsound)
        todo = [fault for fault in faults if results[fault.id].test in runner.unsound]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the faults")
    parser.add_argument("--only", nargs="+", metavar="ID", help="run these, again if need be")
    parser.add_argument(
        "--shard", default="1/1", metavar="K/N", help="run each N-th, from the K-th"
    )
    parser.add_argument(
        "--cap",
        type=float,
        default=90,
        metavar="S",
        help="CPU-seconds of a fast machine per fault and tier (90)",
    )
    args = parser.parse_args()
    faults = read()
    if args.list:
        print("\n".join(f"{fault.id:<30} {fault.file}: {fault.breaks}" for fault in faults))
        return 0
    first, step = map(int, args.shard.split("/"))
    done = () if args.only else rows()
    chosen = [fault for fault in faults if fault.id in (args.only or [fault.id])]
    with copied() as tree:
        run(chosen[first - 1 :: step], tree, args.cap * slowness(), done)
    print(table(faults, rows()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
