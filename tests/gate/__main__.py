"""Run a tier of the tests: `python -m tests.gate [check|test|all] [--shard K/N]`.

The tests run in four pytest invocations: tests of networks, other computing tests, tests that
mostly wait for other processes, and tests marked `alone`. The gate runs the waiting tests in
parallel with the computing ones, so that no core is idle. Failed tests are retried once, alone; a
second failure fails the run. Arguments after the tier's name are passed to pytest in a single
invocation without retries: `python -m tests.gate test tests/service -k queue`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from tests.gate import budget, cpu_time, flaky, nightly, turns
from tests.gate.outcomes import FILES, Outcomes
from tests.gate.selection import ALONE, MARKERS, ROOT, WAITING, Selection, invocations

HERE = ROOT.parent
MAX_RETRIES = 5
"""Maximum number of failed tests that are retried; more failures are not flakes and fail the
run."""
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
    """CPU-seconds by test."""
    _lock: Lock = field(default_factory=Lock)

    def add(self, folder: Path) -> None:
        """Add the files that test processes wrote to a folder."""
        with self._lock:
            for file in sorted(folder.glob(FILES)):
                outcomes = Outcomes.read(file)
                self.failed |= outcomes.failed
                self.broken += outcomes.not_collected
                self.passed += outcomes.passed
            for file in sorted(folder.glob(cpu_time.FILES)):
                for test, seconds in budget.read_times(file).items():
                    self.cpu_s[test] = self.cpu_s.get(test, 0.0) + seconds


def run(selection: Selection, results: Results, *more: str, folder: Path = HERE) -> None:
    """Run one invocation in a folder, and add its outcomes to the results."""
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
    """Start pytest with plugins that write outcomes and CPU times to a folder."""
    command = (sys.executable, "-m", "pytest", *OPTIONS, *PLUGINS)
    command += (f"--written={written}", *arguments)
    return subprocess.Popen(command, cwd=folder, env=os.environ | ENVIRONMENT)


def retry(results: Results, folder: Path = HERE) -> dict[str, str]:
    """Retry failed tests alone; return the errors of those that passed this time. Nothing is
    retried if more tests failed than MAX_RETRIES, or if files could not be collected."""
    if results.broken or not 0 < len(results.failed) <= MAX_RETRIES:
        return {}
    retried = Results()
    with TemporaryDirectory() as written:
        code = pytest(*results.failed, written=Path(written), folder=folder).wait()
        retried.add(Path(written))
    results.broken += retried.broken or (
        [] if code in (0, FAILED) else [f"pytest: exit code {code}"]
    )
    passed = {test: error for test, error in results.failed.items() if test not in retried.failed}
    results.failed = retried.failed
    return passed


def run_tier(tier: str, shard: str) -> int:
    """Run a tier; return the exit code."""
    started, results = time.monotonic(), Results()
    selections = {selection.name: selection for selection in invocations(tier, shard)}
    alone = [selection for name, selection in selections.items() if name == ALONE]
    waiting = [selection for name, selection in selections.items() if name == WAITING]
    computing = [part for part in selections.values() if part not in (*alone, *waiting)]
    run_parts = partial(_run_parts, results=results, most=100 if tier == "all" else MAX_RETRIES)
    with ThreadPoolExecutor(1 if tier == "all" else 2) as threads:
        list(threads.map(run_parts, (computing, waiting)))
    run_parts(alone)
    retried = retry(results)
    flaky.append(retried)
    print(budget.report(results.cpu_s, time.monotonic() - started))
    if tier == "all":
        nightly.write(shard, results.passed, results.failed, results.cpu_s)
    return verdict(results, retried)


def _run_parts(selections: Sequence[Selection], results: Results, most: int) -> None:
    """Run invocations in order until more tests than `most` have failed."""
    for selection in selections:
        if len(results.failed) <= most:
            print(f"\n{selection}", flush=True)
            run(selection, results, "--maxfail", str(most + 1))


def verdict(results: Results, retried: dict[str, str]) -> int:
    """Print the failures, flakes and counts, most important last; return the exit code."""
    for problem in (*results.broken, *results.failed):
        print(f"FAILED {problem}")
    for test in retried:
        print(f"FLAKY {test}: passed when it ran again (tests/flaky.csv)")
    failed = len(results.broken) + len(results.failed)
    print(f"{results.passed} passed, {failed} failed, flaky: {len(retried)}", flush=True)
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    """Parse the command line and run the tier or pytest."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate", description=__doc__)
    parser.add_argument("tier", choices=("check", "test", "all"), default="test", nargs="?")
    parser.add_argument("--shard", metavar="K/N", default="1/1", help="the K-th of N parts")
    options_, further = parser.parse_known_args(arguments)
    if further:
        options = ("--numprocesses", "2", "--dist", "loadfile", "-m", MARKERS[options_.tier])
        command = [sys.executable, "-m", "pytest", *options, *further]
        return subprocess.run(command, cwd=HERE, env=os.environ | ENVIRONMENT).returncode
    return run_tier(options_.tier, options_.shard)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
