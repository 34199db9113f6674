"""Child processes that check images, listed from /proc."""

from __future__ import annotations

from pathlib import Path

from service.http.image_checks import PROGRAM


def children() -> set[int]:
    """Ids of this process's running image-check processes."""
    return {pid for pid in map(int, _listed()) if _is_ours(pid)}


def _listed() -> list[str]:
    return [pid for path in Path("/proc/self/task").glob("*/children") for pid in _words(path)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # the process has exited meanwhile
        return []


def _is_ours(pid: int) -> bool:
    return any(str(PROGRAM) in word for word in _words(Path(f"/proc/{pid}/cmdline")))
