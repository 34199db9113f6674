"""Path of another Python on this machine: `python tests/pythons.py 3.13` prints it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def interpreter(version: str) -> Path:
    """Find a Python outside virtual environments: on PATH, or the newest in pyenv's folder.

    Raises: LookupError: there is none; the message has the remedy.
    """
    for candidate in _candidates(version):
        if _version(candidate) == version:
            return candidate
    raise LookupError(
        f"no Python {version} on this machine: install it so that python{version} is on PATH, or "
        f"by `pyenv install {version}`"
    )


def _candidates(version: str) -> Iterator[Path]:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield Path(sys.base_prefix) / "bin" / f"python{version}"
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates = root.glob(f"versions/{version}.*/bin/python{version}")
    yield from sorted(candidates, key=lambda path: _numbers(path.parts[-3]), reverse=True)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _version(python: Path) -> str:
    """Version of a Python; empty if missing or not runnable, like pyenv's shims of inactive
    versions."""
    program = "import sys; print('{}.{}'.format(*sys.version_info))"
    try:
        process = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True)
    except OSError:
        return ""
    return process.stdout.strip()


if __name__ == "__main__":
    try:
        print(interpreter(sys.argv[1]))
    except LookupError as error:
        sys.exit(str(error))
