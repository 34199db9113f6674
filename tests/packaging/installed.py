"""An environment with the wheel, and commands run in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.system import System, environment

OURS = ("PYTHONPATH", "PYTHONSAFEPATH")


class Installed:
    """A virtual environment with the wheel."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin" / "python"
        self.command = folder / "bin" / "atelier"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "lib" / version / "site-packages"

    def run(self, *command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program in a folder to its end."""
        return subprocess.run(
            command, cwd=cwd, env=plain(environment()), capture_output=True, text=True, timeout=60
        )

    def up(self, state: Path, *arguments: str) -> System:
        """Start the complete system."""

        class Ours(System):
            command = (str(self.command), "up")
            surroundings = staticmethod(plain)

        return Ours(state, *arguments)


def plain(variables: Mapping[str, str]) -> dict[str, str]:
    """Remove the variables through which the tests' children import these sources."""
    return {name: value for name, value in variables.items() if name not in OURS}
