"""Linters of the extra `test` as commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def run(name: str, *arguments: str) -> str:
    """Run a linter; returns its output. Raises: AssertionError: not installed, or failed
    silently."""
    in_environment = Path(sys.executable).with_name(name)
    program = str(in_environment) if in_environment.exists() else shutil.which(name)
    assert program, f"{name} is missing: pip install -e '.[test]', or make test"
    process = subprocess.run([program, *arguments], capture_output=True, text=True)
    output = process.stdout + process.stderr
    assert output or not process.returncode, f"{name} ended with {process.returncode}"
    return output
