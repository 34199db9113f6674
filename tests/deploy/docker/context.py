"""What `docker build` sends of the project: all that .dockerignore leaves."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path


class Context:
    """The files of a folder, by .dockerignore's rules: the last one that fits decides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = (folder / ".dockerignore").read_text("utf-8").splitlines()
        kept = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        self._rules = [(not line.startswith("!"), _pattern(line.lstrip("!"))) for line in kept]

    def has(self, path: Path) -> bool:
        name = path.relative_to(self.folder).as_posix()
        ignored = False
        for ignores, pattern in self._rules:
            if pattern.match(name):
                ignored = ignores
        return not ignored

    def files(self, path: Path) -> Iterator[Path]:
        """The file, or all in the folder."""
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        return (file for file in found if file.is_file() and self.has(file))

    def matching(self, pattern: str) -> list[Path]:
        """As COPY names them. Raises: FileNotFoundError: nothing of that name is sent."""
        found = [path for path in sorted(self.folder.glob(pattern)) if any(self.files(path))]
        if not found:
            raise FileNotFoundError(f"{pattern}: not in the build's context")
        return found

    def copy(self, patterns: list[str], target: str, folder: Path) -> None:
        """Copy what COPY names to its target, which is relative to that folder."""
        for path in (path for pattern in patterns for path in self.matching(pattern)):
            into_folder = path.is_file() and (target.endswith("/") or len(patterns) > 1)
            for file in self.files(path):
                to = folder / target / (path.name if into_folder else file.relative_to(path))
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, to)


def _pattern(rule: str) -> re.Pattern[str]:
    """A rule fits a path, and all that lies below it."""
    parts = re.split(r"(\*\*/|\*)", rule)
    kinds = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return re.compile("".join(kinds.get(part, re.escape(part)) for part in parts) + "(?:/.*)?$")
