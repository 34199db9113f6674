"""The children that check images, as this machine has them."""

from __future__ import annotations

from pathlib import Path

from service.http.image_checks import PROGRAM


def children() -> set[int]:
    """Ids of this process's children that run."""
    return {pid for pid in map(int, _listed()) if _is_ours(pid)}


def _listed() -> list[str]:
    return [pid for path in Path("/proc/self/task").glob("*/children") for pid in _words(path)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return []


def _is_ours(pid: int) -> bool:
    return any(str(PROGRAM) in word for word in _words(Path(f"/proc/{pid}/cmdline")))
