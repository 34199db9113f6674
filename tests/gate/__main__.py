"""Run a tier of the tests: `python -m tests.gate [check|test|all] [--shard K/N]`.

The tests run in three invocations of pytest: those that compute, those that mostly wait for other
processes, and those marked `alone`. A failed test runs again once, alone; what fails twice fails
the run. Whatever follows the tier's name is passed to pytest in one invocation, without retries:
`python -m tests.gate test tests/service -k queue`.
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

from tests.gate import budget, flaky, nightly
from tests.gate.outcomes import Outcomes
from tests.gate.selection import MARKERS, ROOT, Selection, invocations

HERE = ROOT.parent
MOST_RETRIES = 5
"""Failed tests that are retried. More than these are no flakes, and fail the run at once."""
FAILED, NO_TESTS = 1, 5
"""Exit codes of pytest: tests failed; none were selected."""
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": ""}
PLUGINS = ("-p", "tests.gate.cpu_time", "-p", "tests.gate.outcomes")
PLAIN = "addopts=-ra --strict-markers --strict-config"
"""pytest's options without jaxtyping's import hook, which costs a tenth of the time."""


@dataclass
class Results:
    """Outcomes and CPU-seconds of all invocations."""

    failed: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Failures that are not retried: of collection, or of pytest itself."""
    passed: int = 0
    cpu_s: dict[str, float] = field(default_factory=dict)
    """By test."""


def run(selection: Selection, results: Results, *more: str, folder: Path = HERE) -> None:
    """Run one invocation in a folder, and add what it found to the results."""
    with TemporaryDirectory() as temporary:
        outcomes, times = Path(temporary) / "outcomes.json", Path(temporary) / "cpu.json"
        written = ["--outcomes", str(outcomes), "--cpu-times", str(times)]
        arguments = selection.arguments(PLAIN, Path(temporary) / "files.txt")
        code = pytest(*arguments, *PLUGINS, *written, *more, folder=folder)
        if code not in (0, FAILED, NO_TESTS) or not outcomes.exists():
            results.broken.append(f"pytest ended with exit code {code} ({selection.name})")
        if outcomes.exists():
            found = Outcomes.read(outcomes)
            results.failed |= found.failed
            results.broken += found.not_collected
            results.passed += found.passed
        for test, seconds in budget.read_times(times).items():
            results.cpu_s[test] = results.cpu_s.get(test, 0.0) + seconds


def pytest(*arguments: str, folder: Path = HERE) -> int:
    """Run pytest in a process of its own, and return its exit code."""
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | ENVIRONMENT).returncode


def retry(results: Results, folder: Path = HERE) -> dict[str, str]:
    """Run failed tests again, alone; return the errors of those that passed this time.

    Nothing runs again if more failed than flakes do, or if tests could not be collected.
    """
    if results.broken or not 0 < len(results.failed) <= MOST_RETRIES:
        return {}
    again = Results()
    run(Selection("again", 0, tuple(results.failed), "", hook=True), again, folder=folder)
    results.broken += again.broken
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
        parallel = ("--numprocesses", "2", "--dist", "loadscope", "--no-loadscope-reorder")
        return pytest(*parallel, "-m", MARKERS[chosen.tier], *further)
    return run_tier(chosen.tier, chosen.shard)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
