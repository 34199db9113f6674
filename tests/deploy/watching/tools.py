"""Programs of Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HOW = "there is no {}: `apt-get install --no-install-recommends prometheus` has it"


def program(name: str) -> str:
    """Path of a program. Raises: AssertionError: not installed; the message has the command."""
    path = shutil.which(name)
    assert path, HOW.format(name)
    return path


def promtool(*arguments: str | Path) -> None:
    """Run promtool. Raises: AssertionError: it failed, with its output."""
    call = [program("promtool"), *map(str, arguments)]
    process = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.returncode == 0, process.stdout
