"""Headers of weight files: the arrays of a safetensors or GGUF file, recognized by its content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from models.checkpoint.direct_io import aligned
from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint, unreadable
from models.checkpoint.gguf_file import ArrayEntry, read_gguf_header
from models.checkpoint.llama_names import ARCHITECTURES, BEGINNINGS
from models.checkpoint.weight_file import WeightFile
from models.spec.file_kinds import (
    BEGINNING_BYTES,
    EMPTY,
    GGUF,
    MAX_HEADER_BYTES,
    MAX_HEADER_MARKS,
    FileKind,
    header_marks,
    kind_of,
)

LENGTH_BYTES = 8
"""Width of the header length at the beginning of a safetensors file."""
METADATA = "__metadata__"


class WeightHeader(NamedTuple):
    """Header of a weight file."""

    arrays: Mapping[str, ArrayEntry]
    metadata: Mapping[str, str]
    """Metadata of safetensors; for GGUF the architecture."""
    stop: int
    """Offset after the header, in bytes."""


def read_header(path: Path, file: WeightFile) -> WeightHeader:
    """Read and validate the header of a weight file.

    Raises: CheckpointError: not a weight file, damaged, or unreadable; names the kind of file.
    """
    try:
        kind = _kind(file)
        if kind.remedy:
            raise CheckpointError(f"{path} is {kind.refusal}")
        return _of_gguf(path, file) if kind is GGUF else _of_safetensors(path, file)
    except OSError as error:
        raise unreadable(path, error) from error


def header_stop(path: Path, file: WeightFile) -> int:
    """Return the offset at which a weight file's header ends; safetensors are not validated.

    Raises: OSError; CheckpointError: a damaged GGUF file.
    """
    beginning = _beginning(file, LENGTH_BYTES)
    if kind_of(beginning, file.size) is GGUF:
        return read_gguf_header(path, file).stop
    length = min(int.from_bytes(beginning, "little"), MAX_HEADER_BYTES)
    return min(LENGTH_BYTES + length, file.size)


def _kind(file: WeightFile) -> FileKind:
    return kind_of(_beginning(file, BEGINNING_BYTES), file.size) if file.size else EMPTY


def _beginning(file: WeightFile, size: int) -> bytes:
    return bytes(file.read(0, min(size, file.size), aligned))


def _of_gguf(path: Path, file: WeightFile) -> WeightHeader:
    header = read_gguf_header(path, file)
    arrays = header.arrays
    if any(key.startswith(BEGINNINGS) for key in arrays):
        names = ARCHITECTURES.get(header.architecture)
        if names is None:
            raise UnsupportedCheckpoint(
                f"{path} is a GGUF file of a text model "
                f"({header.architecture or 'no architecture'}), whose numbers llama.cpp changes; "
                f"read are {', '.join(ARCHITECTURES)}: give this text encoder as safetensors"
            )
        arrays = {names.of(key): entry for key, entry in arrays.items()}
    return WeightHeader(arrays, {"architecture": header.architecture}, header.stop)


def _of_safetensors(path: Path, file: WeightFile) -> WeightHeader:
    """Read the header of a safetensors file. Raises: CheckpointError: cut off, or damaged."""
    stop = LENGTH_BYTES + int.from_bytes(_beginning(file, LENGTH_BYTES), "little")
    if stop > min(file.size, LENGTH_BYTES + MAX_HEADER_BYTES):
        raise _broken(path, f"a header of {stop - LENGTH_BYTES} bytes in a file of {file.size}")
    beginning = _beginning(file, stop)
    if (marks := header_marks(beginning)) > MAX_HEADER_MARKS:
        raise _broken(path, f"a header of {marks} parts, more than {MAX_HEADER_MARKS}")
    try:
        with file.outline(beginning) as outline, safe_open(outline, framework="numpy"):
            pass  # validates the header completely
    except SafetensorError as error:
        raise _broken(path, f"{file.size} bytes that do not fit its header") from error
    entries: dict[str, Any] = json.loads(beginning[LENGTH_BYTES:])
    metadata = entries.pop(METADATA, None) or {}
    arrays = {
        key: ArrayEntry(entry["dtype"], tuple(entry["shape"]), stop + entry["data_offsets"][0])
        for key, entry in entries.items()
    }
    return WeightHeader(arrays, metadata, stop)


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a whole safetensors file ({what}); fetch it again")
