"""Tests that failed and passed when retried: `tests/flaky.csv`, a line each.

A line stays open until its test is fixed and the line is deleted.
"""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "flaky.csv"
COLUMNS = ("test", "commit", "load", "error")
MAX_OPEN = 15
"""Maximum number of open lines, enforced by a test."""


def append(retried: Mapping[str, str]) -> None:
    """Add a line for each test, with the commit and the machine's load."""
    if not retried:
        return
    with FILE.open("a", newline="") as file:
        writer = csv.writer(file)
        for test, error in retried.items():
            writer.writerow((test, _commit(), f"{os.getloadavg()[0]:.1f}", error))


def lines() -> list[dict[str, str]]:
    """Return the open lines."""
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()
