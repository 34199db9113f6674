"""Presets of `quality` in a checkpoint's `atelier.json`, written by calibration."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.checkpoint.folder import CheckpointError
from models.spec.quality_presets import Quality

FILE = "atelier.json"
PLANNED = "planned-"
"""Prefix of calibrated presets' names; a new calibration deletes presets with this prefix."""


def write_qualities(file: Path, presets: Mapping[str, Quality]) -> None:
    """Write presets to the file, keeping its other entries.

    Raises: CheckpointError: the file has other contents, or cannot be written.
    """
    with _writing(file):
        contents = _other_content(file)
        contents["quality"] |= {name: _as_json(preset) for name, preset in presets.items()}
        partial = _partial(file)
        partial.write_text(json.dumps(contents, indent=2) + "\n", "utf-8")
        partial.replace(file)


def check_writable(file: Path) -> None:
    """Verify that presets can be written to a file, without changing the file.

    Raises: CheckpointError: as `write_qualities`.
    """
    with _writing(file):
        _other_content(file)
        partial = _partial(file)
        partial.touch()
        partial.unlink()


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Convert errors of reading and writing a presets file to CheckpointError.

    Raises: CheckpointError: the file has other contents, or cannot be written.
    """
    try:
        yield
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{file}: no presets can be written there ({error})") from error


def _other_content(file: Path) -> dict[str, Any]:
    """Return the file's contents without the presets of earlier calibrations."""
    contents: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {}
    before = contents.get("quality", {}).items()
    return {**contents, "quality": {k: v for k, v in before if not k.startswith(PLANNED)}}


def _partial(file: Path) -> Path:
    """Return the temporary file that replaces the original after writing."""
    return file.with_name(f"{file.name}.{os.getpid()}.partial")


def _as_json(quality: Quality) -> dict[str, Any]:
    return quality.model_dump(mode="json", exclude_defaults=True)
