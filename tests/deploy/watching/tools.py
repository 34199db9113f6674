"""Prometheus' own programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HOW = "there is no {}: `apt-get install --no-install-recommends prometheus` has it"


def program(name: str) -> str:
    """Its path. Raises: AssertionError: it has to be installed; says how."""
    found = shutil.which(name)
    assert found, HOW.format(name)
    return found


def promtool(*arguments: str | Path) -> None:
    """Raises: AssertionError: it objects; with all that it said."""
    call = [program("promtool"), *map(str, arguments)]
    said = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert said.returncode == 0, said.stdout
