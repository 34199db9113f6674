"""Fingerprint of a checkpoint, independent of the location of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from models.checkpoint.direct_io import aligned
from models.checkpoint.folder import files_below, unreadable
from models.checkpoint.headers import LENGTH_BYTES, header_stop
from models.checkpoint.object_file import ObjectReference, reference_of
from models.checkpoint.weight_file import WeightFile, open_weights
from models.spec.file_kinds import has_weight_ending

SAMPLES, SAMPLE_BYTES = 64, 4096
"""Number of samples of a weight file in the fingerprint, and bytes per sample."""
TEXTS = (".json", ".txt", ".model")
"""Endings of configs and vocabularies."""


def fingerprint(*paths: Path) -> str:
    """Return a digest that identifies a checkpoint's weights and configs.

    Covers configs and vocabularies completely. Of each weight file it covers the size, the header
    and `SAMPLES` evenly spaced samples, which takes well under a second. Files in an object store
    are read by ranges, and yield the same fingerprint as a copy on disk.

    Args:
        paths: its folder, several folders, or single files.

    Raises: CheckpointError: a file cannot be read; StoreUnavailable: the store is unavailable.
    """
    digest = hashlib.sha256()
    for file in (file for path in paths for file in _files(path)):
        try:
            is_text = file.suffix in TEXTS or not (file in paths or has_weight_ending(file.name))
            for part in _whole_file(file) if is_text else _weights(file):
                digest.update(part)
        except OSError as error:
            raise unreadable(file, error) from error
    return digest.hexdigest()[:32]


def config_digest(*paths: Path) -> str:
    """Return a digest of the configs, which determine the compiled programs.

    Covers every `.json` except weight indices, and the headers of single weight files. It is
    therefore available before weights are downloaded.

    Args:
        paths: as in `fingerprint`.

    Raises: CheckpointError: a file cannot be read; StoreUnavailable: the store is unavailable.
    """
    digest = hashlib.sha256()
    for path in paths:
        for file in _files(path):
            try:
                text = _of_programs(file, is_single_file=file == path)
            except OSError as error:
                raise unreadable(file, error) from error
            if text is not None:
                name = file.name if file == path else file.relative_to(path).as_posix()
                digest.update(hashlib.sha256(name.encode() + b"\0" + text).digest())
    return digest.hexdigest()[:32]


def _of_programs(file: Path, *, is_single_file: bool) -> bytes | None:
    """Return the part of a checkpoint's file that affects compiled programs; None: no such part."""
    if file.suffix == ".json" and not file.name.endswith(".index.json"):
        return file.read_bytes()
    if not is_single_file or file.suffix in TEXTS:
        return None
    opened = open_weights(file)
    try:
        return _read(opened, LENGTH_BYTES, header_stop(file, opened) - LENGTH_BYTES)
    finally:
        opened.close()


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return files_below(place)


def _whole_file(file: Path) -> Iterator[bytes]:
    if file.suffix in TEXTS:
        yield hashlib.sha256(file.name.encode()).digest()
        yield hashlib.sha256(file.read_bytes()).digest()


def _weights(file: Path) -> tuple[bytes, ...]:
    """Return the digests of a weight file. Raises: OSError, CheckpointError."""
    reference = reference_of(file)
    return _of_file(file) if reference is None else _of_object(file, reference)


@lru_cache
def _of_object(file: Path, reference: ObjectReference) -> tuple[bytes, ...]:
    """Return the digests of an object's version, cached since a version never changes."""
    return _of_file(file)


def _of_file(file: Path) -> tuple[bytes, ...]:
    opened = open_weights(file)
    try:
        return tuple(_sampled(file, opened))
    finally:
        opened.close()


def _read(file: WeightFile, start: int, size: int) -> bytes:
    stop = min(start + size, file.size)
    return bytes(file.read(start, stop, aligned)) if start < stop else b""


def _sampled(path: Path, file: WeightFile) -> Iterator[bytes]:
    def digest(start: int, size: int) -> bytes:
        return hashlib.sha256(_read(file, start, size)).digest()

    yield hashlib.sha256(f"{path.name} {file.size}".encode()).digest()
    header = max(0, header_stop(path, file) - LENGTH_BYTES)
    last = max(0, file.size - SAMPLE_BYTES)
    samples = [(last * sample // (SAMPLES - 1), SAMPLE_BYTES) for sample in range(SAMPLES)]
    spots = [(LENGTH_BYTES, header), *samples]
    with ThreadPoolExecutor(file.readers, "fingerprint") as threads:
        yield from threads.map(digest, *zip(*spots, strict=True))
