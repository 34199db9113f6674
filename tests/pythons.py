"""Where another Python of this machine is: `python tests/pythons.py 3.13` prints it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def interpreter(version: str) -> Path:
    """Outside any virtual environment: from PATH, or out of pyenv's folder, the newest one.

    Raises: LookupError: it is nowhere; says what to do.
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
    found = root.glob(f"versions/{version}.*/bin/python{version}")
    yield from sorted(found, key=lambda path: _numbers(path.parts[-3]), reverse=True)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _version(python: Path) -> str:
    """Empty: it is not there or does not run, as pyenv's stand-ins for versions that are not
    switched on."""
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    try:
        done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        print(interpreter(sys.argv[1]))
    except LookupError as error:
        sys.exit(str(error))
