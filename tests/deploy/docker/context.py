"""The build context that `docker build` sends: files that .dockerignore does not exclude."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path


class Context:
    """Files of a folder, filtered by .dockerignore; the last matching rule decides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = (folder / ".dockerignore").read_text("utf-8").splitlines()
        rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        self._rules = [(not line.startswith("!"), _pattern(line.lstrip("!"))) for line in rules]

    def has(self, path: Path) -> bool:
        name = path.relative_to(self.folder).as_posix()
        ignored = False
        for ignores, pattern in self._rules:
            if pattern.match(name):
                ignored = ignores
        return not ignored

    def files(self, path: Path) -> Iterator[Path]:
        """Yield the file itself, or all context files of the folder."""
        candidates = [path] if path.is_file() else sorted(path.rglob("*"))
        return (file for file in candidates if file.is_file() and self.has(file))

    def matching(self, pattern: str) -> list[Path]:
        """Return the paths that a COPY pattern matches. Raises: FileNotFoundError: there are
        none."""
        matches = [path for path in sorted(self.folder.glob(pattern)) if any(self.files(path))]
        if not matches:
            raise FileNotFoundError(f"{pattern}: not in the build's context")
        return matches

    def copy(self, patterns: list[str], target: str, folder: Path) -> None:
        """Copy the files of COPY patterns to a target relative to `folder`."""
        for path in (path for pattern in patterns for path in self.matching(pattern)):
            into_folder = path.is_file() and (target.endswith("/") or len(patterns) > 1)
            for file in self.files(path):
                destination = (
                    folder / target / (path.name if into_folder else file.relative_to(path))
                )
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, destination)


def _pattern(rule: str) -> re.Pattern[str]:
    """Compile a rule to a pattern that matches a path and everything below it."""
    parts = re.split(r"(\*\*/|\*)", rule)
    kinds = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return re.compile("".join(kinds.get(part, re.escape(part)) for part in parts) + "(?:/.*)?$")
