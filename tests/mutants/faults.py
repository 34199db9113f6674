"""Faults: exact text replacements at one place of a file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("faults.toml")


class StaleFault(Exception):
    """A fault whose place changed since it was written."""


@dataclass(frozen=True)
class Fault:
    """Entry of `faults.toml`."""

    id: str
    file: str
    """Path below the root of the project."""
    before: str
    """Text that occurs exactly once in the file."""
    after: str
    """Replacement of the text."""
    breaks: str
    """Consequence of the fault, in a line."""

    @property
    def room(self) -> str:
        """Folder that the file belongs to: `models/nn` for everything below it."""
        return "/".join(Path(self.file).parts[:2])

    def applied(self, text: str) -> str:
        """Return the file's text with the fault. Raises: StaleFault."""
        count = text.count(self.before)
        if count != 1:
            raise StaleFault(f"{self.id}: {self.file} has its text {count} times, not once")
        return text.replace(self.before, self.after)


def read(path: Path = LIST) -> list[Fault]:
    """Read the faults of a file, in their order."""
    return [Fault(**entry) for entry in tomllib.loads(path.read_text("utf-8"))["fault"]]
