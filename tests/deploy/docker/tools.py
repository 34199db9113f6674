"""Linters from the extra `test`, as commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def run(name: str, *arguments: str) -> str:
    """What it prints. Raises: AssertionError: it is not installed, or failed without a word."""
    beside = Path(sys.executable).with_name(name)
    program = str(beside) if beside.exists() else shutil.which(name)
    assert program, f"{name} is missing: pip install -e '.[test]', or make test"
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert said or not done.returncode, f"{name} ended with {done.returncode}"
    return said
