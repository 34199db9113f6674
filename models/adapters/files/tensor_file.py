"""Untrusted safetensors files: full validation of the header, arrays read individually."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from models.adapters.files.adapter import AdapterError, StoredArray
from models.spec.file_kinds import (
    BEGINNING_BYTES,
    GGUF,
    MAX_HEADER_BYTES,
    MAX_HEADER_MARKS,
    header_marks,
    kind_of,
)

FLOATS: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
}
"""Dtypes of matrices; bfloat16 and 8-bit floats as their bits."""
WHOLE: Mapping[str, np.dtype[Any]] = {
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BOOL": np.dtype("u1"),
}
"""Dtypes of scalars, in addition to `FLOATS`."""
DTYPES = {**FLOATS, **WHOLE}
INFINITE = {4: 0x7F800000, 2: 0x7C00}
"""Exponent bits by the number of bytes, which are all set in NaN and infinity; bfloat16 differs."""
INFINITE_BF16 = 0x7F80
LENGTH_BYTES = 8
"""Width of the header length at the beginning of a file."""
MAX_AXES = 8
BLOCK = 2**16
"""Numbers that are validated at a time, which fit a core's cache."""
METADATA = "__metadata__"


@dataclass(frozen=True)
class TensorEntry:
    """Header entry of an array, not read yet."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset in the file, in bytes."""

    @property
    def size(self) -> int:
        """Number of elements of the array."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the array in the file."""
        return self.size * DTYPES[self.dtype].itemsize

    @property
    def is_float(self) -> bool:
        """True if the array's elements are floats, not integers."""
        return self.dtype in FLOATS


class TensorFile:
    """Open safetensors file with a validated header.

    Args:
        path, descriptor: the file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.bytes = os.fstat(descriptor).st_size
        _check_kind(path, os.pread(descriptor, BEGINNING_BYTES, 0), self.bytes)
        header = _parsed(self._header(path), path)
        start = LENGTH_BYTES + self._length
        self.metadata = _metadata(header.pop(METADATA, {}), path)
        self.entries = {key: _entry(key, fields, start, path) for key, fields in header.items()}
        _check_places(self.entries, start, self.bytes, path)

    def stored(self, entry: TensorEntry) -> StoredArray:
        """Read an array of an adapter's file.

        Raises: AdapterError: NaN, infinity, numbers beyond float32, or a read error.
        """
        array = np.empty(entry.size, DTYPES[entry.dtype])
        self._fill(array, entry.start, entry.key)
        stored = _stored(array, entry.dtype)
        if not _is_finite(stored):
            raise AdapterError(f"NaN or infinity in {shown(entry.key)}: train or export it again")
        return StoredArray(stored.array.reshape(entry.shape))

    def is_zero(self, entry: TensorEntry) -> bool:
        """Return whether an array is all zeros; reads a block at a time."""
        dtype = DTYPES[entry.dtype]
        for first in range(0, entry.size, BLOCK):
            block = np.empty(min(BLOCK, entry.size - first), dtype)
            self._fill(block, entry.start + first * dtype.itemsize, entry.key)
            if _stored(block, entry.dtype).float32().any():
                return False
        return True

    def _fill(self, array: np.ndarray, start: int, key: str) -> None:
        memory = array.view(np.uint8).data
        done = 0
        while done < len(memory):
            count = os.preadv(self._descriptor, [memory[done:]], start + done)
            if not count:
                raise AdapterError(f"{shown(key)}: the file ends within it; send it again")
            done += count

    def _header(self, path: Path) -> bytes:
        self._length = int.from_bytes(os.pread(self._descriptor, LENGTH_BYTES, 0), "little")
        if not 2 <= self._length <= self.bytes - LENGTH_BYTES:
            _broken(path, "no header at its beginning")
        if self._length > MAX_HEADER_BYTES:
            _broken(path, f"a header of {self._length} bytes, more than {MAX_HEADER_BYTES}")
        return os.pread(self._descriptor, self._length, LENGTH_BYTES)


@contextmanager
def opened(path: Path) -> Iterator[TensorFile]:
    """Open an adapter's safetensors file. Raises: AdapterError: unreadable or invalid."""
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        yield TensorFile(path, descriptor)
    except OSError as error:
        raise AdapterError(f"{path.name} cannot be read: {error.strerror or error}") from error
    finally:
        if descriptor is not None:
            os.close(descriptor)


def shown(key: str) -> str:
    """Return a key for messages: printable, and shortened."""
    plain = key if key.isprintable() else ascii(key)
    return plain if len(plain) <= 160 else f"{plain[:80]}…{plain[-79:]}"


def _check_kind(path: Path, beginning: bytes, size: int) -> None:
    """Verify that a file has no other known format. Raises: AdapterError: names the format."""
    kind = kind_of(beginning, size)
    if kind is GGUF:
        raise AdapterError(f"{path.name} is {kind.title}; send the adapter as safetensors")
    if kind.remedy:
        raise AdapterError(f"{path.name} is {kind.refusal}")


def _stored(array: np.ndarray, dtype: str) -> StoredArray:
    """Convert an array to a dtype of `StoredArray`; 8-bit floats convert exactly."""
    if dtype == "F8_E5M2":
        return StoredArray((array.astype(np.uint16) << 8).view(np.float16))
    if dtype == "F8_E4M3":
        return StoredArray(_e4m3_values()[array])
    if dtype in ("F32", "F16", "BF16"):
        return StoredArray(array)
    with np.errstate(over="ignore"):  # becomes infinity, which is refused
        return StoredArray(array.astype(np.float32))


@cache
def _e4m3_values() -> np.ndarray:
    """Return the values of all 256 bit patterns of float8 e4m3, as float16.

    Source: Micikevicius et al. 2022 (FP8 formats for deep learning), table 1: no infinities.
    """
    bits = np.arange(256)
    exponents, fractions = bits >> 3 & 15, bits & 7
    sizes = np.where(
        exponents == 0, fractions * 2.0**-9, (8 + fractions) * 2.0 ** (exponents - 10.0)
    )
    sizes[bits & 127 == 127] = np.nan
    return np.where(bits < 128, sizes, -sizes).astype(np.float16)


def _parsed(header: bytes, path: Path) -> dict[str, Any]:
    if (marks := header_marks(header)) > MAX_HEADER_MARKS:
        _broken(path, f"a header of {marks} parts, more than {MAX_HEADER_MARKS}")
    try:
        parsed = json.loads(header, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        _broken(path, str(error) if isinstance(error, AdapterError) else json_fault(error))
    if not isinstance(parsed, dict):
        _broken(path, "a header that is not an object")
    return parsed


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise AdapterError("a key that is there twice")
    return result


def json_fault(error: Exception) -> str:
    """Return why a text is no JSON, without the text of the JSON library."""
    if isinstance(error, json.JSONDecodeError):
        return f"invalid JSON at character {error.pos}"
    return "JSON that is nested too deeply, or has a number or text that cannot be read"


def _metadata(metadata: Any, path: Path) -> Mapping[str, str]:
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        _broken(path, "metadata that are no texts by name")
    return metadata


def _entry(key: str, fields: Any, start: int, path: Path) -> TensorEntry:
    """Return an array's entry, verifying that its byte range matches its shape."""
    match fields:
        case {"dtype": str() as dtype, "shape": list() as shape, "data_offsets": [first, stop]}:
            pass
        case _:
            _broken(path, f"{shown(key)} without dtype, shape and offsets")
    if not all(type(number) is int and number >= 0 for number in (*shape, first, stop)):
        _broken(path, f"{shown(key)} with a shape or offsets that are no whole numbers")
    if dtype not in DTYPES:
        raise unread_type(dtype, key)
    entry = TensorEntry(key, dtype, tuple(shape), start + first)
    if len(shape) > MAX_AXES or stop - first != entry.bytes:
        _broken(path, f"{shown(key)} of other bytes than its shape has")
    return entry


def unread_type(dtype: str, key: str) -> AdapterError:
    """Return the error of a matrix of an unsupported dtype."""
    return AdapterError(
        f"{shown(dtype)}: weights of this type are not read ({shown(key)}); save them as "
        f"{', '.join(FLOATS)}"
    )


def _check_places(entries: Mapping[str, TensorEntry], start: int, stop: int, path: Path) -> None:
    """Verify that the arrays of a file are contiguous and fill the file."""
    for entry in sorted(entries.values(), key=lambda item: (item.start, item.bytes)):
        if entry.start != start:
            _broken(path, f"{shown(entry.key)} does not begin where the array before it ends")
        start += entry.bytes
    if start != stop:
        _broken(path, f"arrays that end at byte {start} of {stop}")


def _broken(path: Path, what: str) -> NoReturn:
    raise AdapterError(f"{path.name} is not a whole safetensors file ({what}); send it again")


def _is_finite(stored: StoredArray) -> bool:
    bits = stored.array.view(f"<u{stored.array.itemsize}")
    mask = bits.dtype.type(INFINITE_BF16 if stored.is_bfloat16 else INFINITE[bits.itemsize])
    scratch = np.empty(min(BLOCK, bits.size), bits.dtype)
    for first in range(0, bits.size, BLOCK):
        block = bits[first : first + BLOCK]
        if np.bitwise_and(block, mask, out=scratch[: block.size]).max() == mask:
            return False
    return True
