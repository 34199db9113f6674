"""Select the packages of `make install` from the lock: `python -m tools.packages`.

deploy/packages.lock (written by `make locks`) has every package of every extra of pyproject.toml,
for every supported Python, with file hashes. The last line of each entry names its extras. pip
installs a selection:
    python -m tools.packages cpu test > chosen.txt
    pip install --no-deps --require-hashes --only-binary :all: --requirement chosen.txt

It uses only the standard library, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

LOCK = Path(__file__).parents[1] / "deploy" / "packages.lock"
FOR = "    # for "
CORE = "core"
"""Pseudo-extra of packages that every install needs."""
BUILD = "build"
"""Pseudo-extra of Atelier's build requirements."""


class Entry(NamedTuple):
    """Locked version of a Python package, with hashes and extras."""

    pin: str
    """pip requirement `name==version`, possibly with markers for Pythons or machines."""
    hashes: tuple[str, ...]
    extras: tuple[str, ...]

    def __str__(self) -> str:
        return " \\\n    ".join((self.pin, *(f"--hash={digest}" for digest in self.hashes)))


def entries(text: str) -> Iterator[Entry]:
    """Yield the entries of a lock.

    Raises: ValueError: invalid line.
    """
    pin, hashes = "", list[str]()
    for line in text.splitlines():
        if line.startswith(FOR) and pin:
            yield Entry(pin, tuple(hashes), tuple(line.removeprefix(FOR).split()))
            pin, hashes = "", []
        elif line.startswith("    --hash=") and pin:
            hashes.append(line.removeprefix("    --hash=").removesuffix(" \\"))
        elif "==" in line and not line.startswith((" ", "#")) and not pin:
            pin = line.removesuffix(" \\")
        elif line and not line.startswith("#"):
            raise ValueError(f"not a line of a lock: {line!r}; run `make locks`")


def chosen(locked: Iterable[Entry], extras: Iterable[str]) -> list[Entry]:
    """Select the packages of these extras, and those of every install.

    Raises: ValueError: unknown extra.
    """
    every, wanted = list(locked), {*extras, CORE, BUILD}
    if unknown := wanted - {extra for entry in every for extra in entry.extras}:
        raise ValueError(f"the lock has no {', '.join(sorted(unknown))}; run `make locks`")
    return [entry for entry in every if wanted.intersection(entry.extras)]


def main(arguments: list[str]) -> int:
    """Print the selected requirements for pip."""
    parser = argparse.ArgumentParser(description="Print what pip is to install of the lock.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="of pyproject.toml")
    options = parser.parse_args(arguments)
    try:
        selected = chosen(entries(LOCK.read_text("utf-8")), options.extras)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, selected)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
