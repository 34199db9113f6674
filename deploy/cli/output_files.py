"""Output files of commands, and the output formats of `atelier generate`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.exit_codes import UsageError

FORMATS = {
    ".png": "png",
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".webp": "webp",
    ".mp4": "mp4",
    ".webm": "webm",
    ".gif": "gif",
}
"""Format by file extension; folders get PNG files, one per frame of a video."""
HERE = Path("-")
"""Standard output."""


def check_writable(path: Path | None) -> None:
    """Verify that a report's file is writable, before a long run. Raises: UsageError."""
    if path is None or path == HERE:
        return
    if path.is_dir():
        raise UsageError(f"can't write {str(path)!r}: it is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"can't write {str(path)!r}: there is no folder {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"can't write {str(path)!r}: permission denied")


def format_of(path: Path) -> str:
    """Return the output format of a path.

    Raises: UsageError: unknown extension, or no such parent folder.
    """
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r}")
    if _is_folder(path):
        return "png"
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise UsageError(f"{path.name!r} must end in {', '.join(FORMATS)}") from None


def _is_folder(path: Path) -> bool:
    return path.is_dir() or not path.suffix


def path_of(output: Path | None, item: Mapping[str, Any], count: int) -> Path:
    """Return the path of one of `count` outputs; numbers are zero-padded."""
    suffix = item["content_type"].partition("/")[2]
    if output is None:
        return Path(f"atelier-{item['seed']}.{suffix}")
    number = f"{item['index']:0{len(str(count - 1))}}"
    if _is_folder(output):
        output.mkdir(exist_ok=True)
        return output / f"{number}.{suffix}"
    return output if count == 1 else output.with_stem(f"{output.stem}-{number}")
