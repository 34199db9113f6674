"""Run changed test files five times, three of them on a busy machine: `make test-changed`.

A test whose verdict depends on the machine's speed fails here first: one failure is recorded as
flaky, two failures of a test fail the run. Changed files differ from a base commit: `--base`, or
the branch's merge base with `origin/main`, or the last commit at least four hours before HEAD. If
not all fit into the time, a sample runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from deploy.local.processes import dies_with_parent
from tests import tiers
from tests.gate import budget, flaky
from tests.gate.__main__ import HERE, Results, run
from tests.gate.groups import Group, in_groups
from tests.gate.selection import COMPUTING_PROCESSES, MARKERS, ROOT, Selection

ROUNDS, BUSY_ROUNDS, LOOPS = 2, 3, 4
"""Rounds on the unloaded machine, rounds with busy loops, and the number of these loops."""
SAMPLE_S = 10.0
"""CPU-seconds of one round."""
LIMIT_S = 180.0
"""Wall time after which no further round starts."""
RECENT_S = 4 * 3_600
"""Age of the base commit in seconds, relative to HEAD."""
BUSY = "while True: pass"


def base_commit() -> str:
    """Return the commit to compare with."""
    head, merged = _git("rev-parse", "HEAD"), _git("merge-base", "HEAD", "origin/main")
    if merged and merged != head:
        return merged
    committed_s = int(_git("log", "-1", "--format=%ct") or 0)
    return _git("rev-list", "-1", f"--min-age={committed_s - RECENT_S}", "HEAD") or head


def changed_files(base: str) -> list[Path]:
    """Return the gate's test files that differ from a commit."""
    names = _git("diff", "--name-only", "--diff-filter=d", base, "--", "tests").splitlines()
    files = [ROOT.parent / name for name in names if Path(name).match("test_*.py")]
    return [file for file in files if not tiers.is_nightly(file.relative_to(ROOT))]


def sample(files: Sequence[Path], commit: str) -> list[Path]:
    """Return as many files as a round has time for; the commit determines the choice."""
    chosen, cost = [], 0.0
    for file in sorted(files, key=lambda file: crc32(f"{commit}{file.name}".encode())):
        if cost + budget.recorded(file) <= SAMPLE_S:
            chosen.append(file)
            cost += budget.recorded(file)
    return chosen


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep all cores busy within the block."""
    processes = [
        subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=dies_with_parent())
        for _ in range(loops)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(arguments: Sequence[str]) -> int:
    """Run the rounds; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate.changed", description=__doc__)
    parser.add_argument("--base", metavar="COMMIT")
    base = parser.parse_args(arguments).base or base_commit()
    files = changed_files(base)
    chosen = in_groups(sample(files, _git("rev-parse", "HEAD")))
    print(f"{len(chosen)} of {len(files)} test files that changed since {base[:12]}", flush=True)
    failed = repeat(chosen) if chosen else Counter()
    flaky.append({test: error for (test, error), rounds in failed.items() if rounds == 1})
    broken = [test for (test, _), rounds in failed.items() if rounds > 1]
    for test, error in failed:
        print(f"{'FAILED' if test in broken else 'FLAKY'} {test}: {error}")
    return 1 if broken else 0


def repeat(groups: Sequence[Group], folder: Path = HERE) -> Counter[tuple[str, str]]:
    """Run tests in all rounds; return the number of failed rounds by test and first error."""
    started, errors, rounds = time.monotonic(), dict[str, str](), Counter[str]()
    selection = Selection("changed", COMPUTING_PROCESSES, groups, MARKERS["test"], hook=True)
    for loops in (0,) * ROUNDS + (LOOPS,) * BUSY_ROUNDS:
        if time.monotonic() - started < LIMIT_S:
            results = Results()
            with busy(loops):
                run(selection, results, folder=folder)
            rounds.update([*results.failed, *results.broken, *results.broken])
            errors = {**dict.fromkeys(results.broken, "not run"), **results.failed, **errors}
    return Counter({(test, errors[test]): count for test, count in rounds.items()})


def _git(*arguments: str) -> str:
    """Return git's output; empty if it fails."""
    process = subprocess.run(["git", *arguments], cwd=ROOT.parent, capture_output=True, text=True)
    return process.stdout.strip() if process.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
