"""Headers of GGUF files, parsed within bounds: no length is trusted before memory is allocated.

Source: ggml, docs/gguf.md, for the format; city96's ComfyUI-GGUF for the shapes of arrays with more
than four axes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from models.checkpoint.direct_io import aligned
from models.checkpoint.folder import CheckpointError
from models.checkpoint.number_formats import FORMATS
from models.checkpoint.weight_file import WeightFile
from models.spec.file_kinds import MAX_HEADER_BYTES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ITEMS = 200_000
"""Maximum number of arrays, and of metadata."""
MAX_TEXTS = 1 << 20
"""Maximum number of texts in an array of metadata, such as a vocabulary."""
MAX_NAME_BYTES = 2**16 - 1
MAX_AXES = 8
MAX_ALIGNMENT = 1 << 16
STEP = 1 << 18
"""Bytes of the header that are read at a time."""
KINDS: Mapping[int, str] = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1"},
    **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS"},
    **{17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S"},
    **{23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M"},
    **{30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"},
}
"""Names of array types. Source: ggml, enum ggml_type."""
SCALARS: Mapping[int, str] = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"},
    **{10: "<Q", 11: "<q", 12: "<d"},
}
"""Formats of scalar metadata in `struct`, by type."""
FLOATS = ("<f", "<d")
TEXT, ARRAY = 8, 9
"""Types of metadata that are no scalars."""
ARCHITECTURE, ALIGNMENT = "general.architecture", "general.alignment"
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
"""Metadata with the shape of an array whose blocks run across its rows."""


class ArrayEntry(NamedTuple):
    """Array of a weight file, not read yet."""

    kind: str
    """Number format, a key of `models.checkpoint.number_formats.FORMATS` if it can be read."""
    shape: tuple[int, ...]
    """Shape in torch's order."""
    start: int
    """Offset in the file, in bytes."""

    @property
    def size(self) -> int:
        """Bytes in the file; 0 for formats that cannot be read."""
        numbers = FORMATS.get(self.kind)
        return 0 if numbers is None else math.prod(self.shape) // numbers.numbers * numbers.bytes


@dataclass
class _Cursor:
    """Read position in the header of a GGUF file, of which a window is in memory."""

    path: Path
    file: WeightFile
    at: int = 0
    _first: int = 0
    _window: bytes = b""

    def take(self, size: int) -> bytes:
        """Return the next bytes, of which callers bound the number. Raises: CheckpointError."""
        start = self.at
        self.skip(size)
        if self.at > self._first + len(self._window):
            stop = min(max(self.at, start + STEP), self.file.size)
            self._first, self._window = start, bytes(self.file.read(start, stop, aligned))
        return self._window[start - self._first : self.at - self._first]

    def skip(self, size: int) -> None:
        """Skip bytes of a header.

        Raises: CheckpointError: the file, or a header's bound, ends before.
        """
        self.at += size
        bound = min(self.file.size, MAX_HEADER_BYTES)
        if self.at > bound:
            self.broken(f"its header does not end within {bound} bytes")

    def number(self, code: str) -> Any:
        """Return the header's next number, in a format of `struct`."""
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        """Return the header's next text: length, then UTF-8. Raises: CheckpointError: too long."""
        length = self.number("<Q")
        if length > MAX_NAME_BYTES:
            self.broken(f"a name of {length} bytes, more than {MAX_NAME_BYTES}")
        return self.take(length).decode(errors="replace")

    def count(self, what: str, most: int = MAX_ITEMS) -> int:
        """Return a header's next number, a count of items. Raises: CheckpointError: too many."""
        count: int = self.number("<Q")
        if count > most:
            self.broken(f"{count} {what}, more than {most}")
        return count

    def broken(self, what: str) -> NoReturn:
        """Raise CheckpointError for a damaged GGUF file."""
        raise CheckpointError(f"{self.path}: not a whole GGUF file ({what}); fetch it again")


class GgufHeader(NamedTuple):
    """Header of a GGUF file."""

    arrays: Mapping[str, ArrayEntry]
    architecture: str
    """Architecture that the file names; empty: none."""
    stop: int
    """Offset after the header, in bytes."""


def read_gguf_header(path: Path, file: WeightFile) -> GgufHeader:
    """Read and validate the header of a GGUF file.

    Raises: CheckpointError: another version, damaged, or beyond the bounds.
    """
    cursor = _Cursor(path, file)
    if cursor.take(4) != MAGIC:
        cursor.broken("no GGUF at its beginning")
    _check_version(cursor)
    arrays, fields = cursor.count("arrays"), cursor.count("metadata")
    metadata = dict(_metadata(cursor) for _ in range(fields))
    infos = [_info(cursor) for _ in range(arrays)]
    stop = cursor.at
    alignment = _alignment(cursor, metadata)
    start = -(-stop // alignment) * alignment
    placed = {
        name: ArrayEntry(kind, _shape(cursor, name, shape, metadata), start + offset)
        for name, kind, shape, offset in infos
    }
    if len(placed) < len(infos):
        cursor.broken("two arrays of one name")
    _check_bounds(cursor, placed)
    return GgufHeader(placed, str(metadata.get(ARCHITECTURE, "")), stop)


def _check_version(cursor: _Cursor) -> None:
    """Check a GGUF file's version. Raises: CheckpointError: unsupported version or byte order."""
    version = cursor.number("<I")
    if version not in VERSIONS:
        kind = "in big-endian byte order" if not version & 0xFFFF else f"version {version}"
        raise CheckpointError(
            f"{cursor.path}: GGUF {kind} is not read; convert the weights to version 3, "
            "little-endian"
        )


def _metadata(cursor: _Cursor) -> tuple[str, Any]:
    """Read a metadata entry's name and value; None for texts and arrays that are not needed."""
    name, kind = cursor.text(), cursor.number("<I")
    if kind in SCALARS:
        return name, cursor.number(SCALARS[kind])
    if kind == ARRAY:
        return name, _array(cursor, is_needed=name.startswith(ORIGINAL_SHAPE))
    if kind != TEXT:
        cursor.broken(f"metadata of the unknown type {kind}")
    if name == ARCHITECTURE:
        return name, cursor.text()
    cursor.skip(cursor.number("<Q"))
    return name, None


def _array(cursor: _Cursor, *, is_needed: bool) -> tuple[int, ...] | None:
    """Read a metadata array of integers; None: texts, floats, or not needed."""
    kind = cursor.number("<I")
    if kind == TEXT:
        for _ in range(cursor.count("texts", MAX_TEXTS)):
            cursor.skip(cursor.number("<Q"))
        return None
    if kind not in SCALARS:
        cursor.broken(f"an array of the type {kind}")
    length, code = cursor.number("<Q"), SCALARS[kind]
    if not is_needed or code in FLOATS:
        cursor.skip(length * struct.calcsize(code))
        return None
    if length > MAX_AXES:
        cursor.broken(f"a shape of {length} axes")
    return tuple(int(cursor.number(code)) for _ in range(length))


def _info(cursor: _Cursor) -> tuple[str, str, tuple[int, ...], int]:
    """Read an array's name, type, shape and offset in the data."""
    name, axes = cursor.text(), cursor.number("<I")
    if axes > MAX_AXES:
        cursor.broken(f"{name!r} of {axes} axes")
    shape = tuple(cursor.number("<Q") for _ in range(axes))[::-1]  # the first axis is the last
    kind, offset = cursor.number("<I"), cursor.number("<Q")
    return name, KINDS.get(kind, f"type {kind}"), shape, offset


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get(ALIGNMENT, 32)
    if (
        type(alignment) is not int
        or not 0 < alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        cursor.broken("an alignment that is no power of two")
    return alignment


def _shape(
    cursor: _Cursor, name: str, shape: tuple[int, ...], metadata: Mapping[str, Any]
) -> tuple[int, ...]:
    """Return an array's shape in torch's order. Raises: CheckpointError: its sizes do not match."""
    value = metadata.get(ORIGINAL_SHAPE + name)
    original: tuple[int, ...] = value if isinstance(value, tuple) else shape
    if min(original, default=1) < 0 or math.prod(original) != math.prod(shape):
        cursor.broken(f"{name!r} with two shapes, {list(shape)} and {list(original)}")
    return original


def _check_bounds(cursor: _Cursor, arrays: Mapping[str, ArrayEntry]) -> None:
    """Verify that a GGUF file's arrays are whole blocks inside the file that do not overlap.

    Raises: CheckpointError.
    """
    end = 0
    for name, array in sorted(arrays.items(), key=lambda item: (item[1].start, item[1].size)):
        numbers = FORMATS[array.kind].numbers if array.kind in FORMATS else 1
        if math.prod(array.shape) % numbers:
            cursor.broken(f"{name!r} is no whole number of blocks of {numbers}")
        if array.start < end or array.start + array.size > cursor.file.size:
            cursor.broken(f"{name!r} is outside the file, or in another array")
        end = max(end, array.start + array.size)
