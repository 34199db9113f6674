"""Presets of `quality` in a checkpoint's `atelier.json`, as calibration writes them."""

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
"""Beginning of the names that calibration gives: those of an earlier one are dropped."""


def write_qualities(file: Path, presets: Mapping[str, Quality]) -> None:
    """Write presets into the file, whose other entries stay as they are.

    Raises: CheckpointError: it holds something else, or cannot be written.
    """
    with _writing(file):
        found = _kept(file)
        found["quality"] |= {name: _as_json(one) for name, one in presets.items()}
        partial = _partial(file)
        partial.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        partial.replace(file)


def check_writable(file: Path) -> None:
    """Check that presets can be written into a file, which stays as it is.

    Raises: CheckpointError: as `write_qualities` does.
    """
    with _writing(file):
        _kept(file)
        partial = _partial(file)
        partial.touch()
        partial.unlink()


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Raises: CheckpointError: the file holds something else, or cannot be written."""
    try:
        yield
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{file}: no presets can be written there ({error})") from error


def _kept(file: Path) -> dict[str, Any]:
    """Return what stays in the file: all but the presets of an earlier calibration."""
    found: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {}
    before = found.get("quality", {}).items()
    return {**found, "quality": {k: v for k, v in before if not k.startswith(PLANNED)}}


def _partial(file: Path) -> Path:
    """Return the file that is written before it takes the other one's place."""
    return file.with_name(f"{file.name}.{os.getpid()}.partial")


def _as_json(quality: Quality) -> dict[str, Any]:
    return quality.model_dump(mode="json", exclude_defaults=True)
