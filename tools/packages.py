"""Choose what `make install` installs, out of the one lock: `python -m tools.packages`.

deploy/packages.lock (by `make locks`) has every package of every extra of pyproject.toml, for every
Python that is served, with the hashes of its files; a last line of each says which extras it is
for. pip takes a choice of it:

    python -m tools.packages cpu test > chosen.txt
    pip install --no-deps --require-hashes --only-binary :all: --requirement chosen.txt

Needs Python alone: it runs before anything is installed.
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
"""Extra of what comes with every install: none."""
BUILD = "build"
"""Marks the build requirements of Atelier itself."""


class Entry(NamedTuple):
    """A version of a package."""

    pin: str
    """Requirement as pip takes it: `name==version`, some for certain Pythons or machines."""
    hashes: tuple[str, ...]
    extras: tuple[str, ...]

    def __str__(self) -> str:
        return " \\\n    ".join((self.pin, *(f"--hash={one}" for one in self.hashes)))


def entries(text: str) -> Iterator[Entry]:
    """Yield the entries of a lock.

    Raises: ValueError: a line that `make locks` would not write.
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


def chosen(found: Iterable[Entry], extras: Iterable[str]) -> list[Entry]:
    """Select what these extras install, with what every install has.

    Raises: ValueError: the lock knows no such extra.
    """
    every, wanted = list(found), {*extras, CORE, BUILD}
    if unknown := wanted - {extra for entry in every for extra in entry.extras}:
        raise ValueError(f"the lock has no {', '.join(sorted(unknown))}; run `make locks`")
    return [entry for entry in every if wanted.intersection(entry.extras)]


def main(arguments: list[str]) -> int:
    """Print what pip is to install."""
    parser = argparse.ArgumentParser(description="Print what pip is to install of the lock.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="of pyproject.toml")
    asked = parser.parse_args(arguments)
    try:
        found = chosen(entries(LOCK.read_text("utf-8")), asked.extras)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
