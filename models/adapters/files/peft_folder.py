"""Folders that PEFT saves: an adapter's weights, and its config with the scaling factors."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.adapters.files.adapter import AdapterError
from models.spec.file_kinds import MAX_HEADER_BYTES, PEFT_CONFIG, PEFT_FILE

METADATA = "lora_adapter_metadata"
"""Metadata entry of a file with PEFT's config, as JSON."""
MAX_CONFIG_BYTES = 16 << 20
_LENGTH_BYTES = 8


def folder_config(path: Path) -> bytes:
    """Return PEFT's config next to an adapter's file of PEFT's name; empty: none.

    Raises: AdapterError: too large or unreadable.
    """
    file = path.with_name(PEFT_CONFIG)
    if path.name != PEFT_FILE or not file.is_file():
        return b""
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise AdapterError(f"{PEFT_CONFIG} is larger than {MAX_CONFIG_BYTES >> 20} MiB")
        return file.read_bytes()
    except OSError as error:
        raise AdapterError(f"{PEFT_CONFIG} cannot be read: {error.strerror or error}") from error


@contextmanager
def with_config(path: Path) -> Iterator[Path]:
    """Yield an adapter's file whose metadata have the config of its PEFT folder.

    It is a temporary copy; files of other names, and invalid ones, are yielded as they are.

    Raises: AdapterError: as `folder_config`.
    """
    config = folder_config(path)
    with tempfile.TemporaryDirectory(prefix="atelier-") as folder:
        copy = Path(folder) / path.name
        yield copy if config and _copied(path, copy, config) else path


def _copied(path: Path, copy: Path, config: bytes) -> bool:
    """Copy a safetensors file with a config; return False if its header is invalid."""
    with path.open("rb") as source, copy.open("wb") as goal:
        length = int.from_bytes(source.read(_LENGTH_BYTES), "little")
        if length > MAX_HEADER_BYTES:
            return False
        try:
            header = json.loads(source.read(length))
            header.setdefault("__metadata__", {}).setdefault(METADATA, config.decode())
        except (ValueError, RecursionError, AttributeError):
            return False
        text = json.dumps(header).encode()
        goal.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        shutil.copyfileobj(source, goal)
    return True
