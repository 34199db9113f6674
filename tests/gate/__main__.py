"""Run a tier of the tests: `python -m tests.gate [check|test|all] [--shard K/N]`.

The tests run in four invocations: those of networks, those that compute otherwise, those that
mostly wait for other processes, and those marked `alone`. A failed test runs again once, alone;
what fails twice fails the run. Whatever follows the tier's name is passed to pytest in one
invocation, without retries: `python -m tests.gate test tests/service -k queue`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.gate import budget, cpu_time, flaky, nightly, turns
from tests.gate.outcomes import FILES, Outcomes
from tests.gate.selection import MARKERS, ROOT, Selection, invocations

HERE = ROOT.parent
MOST_RETRIES = 5
"""Failed tests that are retried. More than these are no flakes, and fail the run at once."""
FAILED, NO_TESTS = 1, 5
"""Exit codes of pytest: tests failed; none were selected."""
OPTIONS = ("-q", "-o", "console_output_style=classic")
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": ""}
PLUGINS = ("-p", "tests.gate.cpu_time", "-p", "tests.gate.outcomes")
PLAIN = "addopts=-ra --strict-markers --strict-config"
"""pytest's options without jaxtyping's import hook."""


@dataclass
class Results:
    """Outcomes and CPU-seconds of all invocations."""

    failed: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Failures that are not retried: of collection, or of pytest itself."""
    passed: int = 0
    cpu_s: dict[str, float] = field(default_factory=dict)
    """By test."""

    def add(self, folder: Path) -> None:
        """Add what test processes have written there."""
        for file in sorted(folder.glob(FILES)):
            found = Outcomes.read(file)
            self.failed |= found.failed
            self.broken += found.not_collected
            self.passed += found.passed
        for file in sorted(folder.glob(cpu_time.FILES)):
            for test, seconds in budget.read_times(file).items():
                self.cpu_s[test] = self.cpu_s.get(test, 0.0) + seconds


def run(selection: Selection, results: Results, *more: str, folder: Path = HERE) -> None:
    """Run one invocation in a folder, and add what it found to the results."""
    hook = () if selection.hook else ("-o", PLAIN)
    with TemporaryDirectory() as temporary:
        shared = Path(temporary)
        turns.write(shared, selection.groups)
        options = (*hook, "-m", selection.marker, "-p", "tests.gate.turns", f"--turns={temporary}")
        processes = [
            pytest(*options, f"--process={number}", *more, written=shared, folder=folder)
            for number in range(selection.processes)
        ]
        for number, process in enumerate(processes):
            if process.wait() not in (0, FAILED, NO_TESTS):
                results.broken.append(
                    f"a test process ended with exit code {process.returncode} in "
                    f"{turns.running(shared, number)} ({selection.name})"
                )
        results.add(shared)


def pytest(*arguments: str, written: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start pytest, which writes its outcomes and CPU times into a folder."""
    command = (sys.executable, "-m", "pytest", *OPTIONS, *PLUGINS)
    command += (f"--written={written}", *arguments)
    return subprocess.Popen(command, cwd=folder, env=os.environ | ENVIRONMENT)


def retry(results: Results, folder: Path = HERE) -> dict[str, str]:
    """Run failed tests again, alone; return the errors of those that passed this time.

    Nothing runs again if more failed than flakes do, or if tests could not be collected.
    """
    if results.broken or not 0 < len(results.failed) <= MOST_RETRIES:
        return {}
    again = Results()
    with TemporaryDirectory() as written:
        code = pytest(*results.failed, written=Path(written), folder=folder).wait()
        again.add(Path(written))
    results.broken += again.broken or ([] if code in (0, FAILED) else [f"pytest: exit code {code}"])
    passed = {test: error for test, error in results.failed.items() if test not in again.failed}
    results.failed = again.failed
    return passed


def run_tier(tier: str, shard: str) -> int:
    """Run a tier; return the exit code."""
    began, results = time.monotonic(), Results()
    for selection in invocations(tier, shard):
        if len(results.failed) <= MOST_RETRIES:
            print(f"\n{selection}", flush=True)
            run(selection, results, "--maxfail", str(MOST_RETRIES + 1 if tier != "all" else 100))
    retried = retry(results)
    flaky.append(retried)
    print(budget.report(results.cpu_s, time.monotonic() - began))
    if tier == "all":
        nightly.write(shard, results.passed, results.failed, results.cpu_s)
    return verdict(results, retried)


def verdict(results: Results, retried: dict[str, str]) -> int:
    """Print what decides the exit code, the most important last; return it."""
    for problem in (*results.broken, *results.failed):
        print(f"FAILED {problem}")
    for test in retried:
        print(f"FLAKY {test}: passed when it ran again (tests/flaky.csv)")
    failed = len(results.broken) + len(results.failed)
    print(f"{results.passed} passed, {failed} failed, flaky: {len(retried)}", flush=True)
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    """Parse the command line, and run what it names."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate", description=__doc__)
    parser.add_argument("tier", choices=("check", "test", "all"), default="test", nargs="?")
    parser.add_argument("--shard", metavar="K/N", default="1/1", help="the K-th of N parts")
    chosen, further = parser.parse_known_args(arguments)
    if further:
        options = ("--numprocesses", "2", "--dist", "loadfile", "-m", MARKERS[chosen.tier])
        command = [sys.executable, "-m", "pytest", *options, *further]
        return subprocess.run(command, cwd=HERE, env=os.environ | ENVIRONMENT).returncode
    return run_tier(chosen.tier, chosen.shard)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
