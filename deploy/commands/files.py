"""Where `atelier generate` writes, and in what format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.commands.exits import UsageError

FORMATS = {
    ".png": "png",
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".webp": "webp",
    ".mp4": "mp4",
    ".webm": "webm",
    ".gif": "gif",
}
"""Of a file's ending; a folder gets PNG files, of a clip one a frame."""


def format_of(path: Path) -> str:
    """Raises: UsageError: nothing can be written there."""
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
    """Where one of `count` outputs goes; their names sort as they are counted."""
    suffix = item["content_type"].partition("/")[2]
    if output is None:
        return Path(f"atelier-{item['seed']}.{suffix}")
    number = f"{item['index']:0{len(str(count - 1))}}"
    if _is_folder(output):
        output.mkdir(exist_ok=True)
        return output / f"{number}.{suffix}"
    return output if count == 1 else output.with_stem(f"{output.stem}-{number}")
