"""Fingerprint of a checkpoint: the same wherever its files lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from models.checkpoint.direct_io import aligned
from models.checkpoint.folder import unreadable
from models.checkpoint.object_file import ObjectReference, reference_of
from models.checkpoint.weight_file import WeightFile, open_weights

SAMPLES, SAMPLE_BYTES = 64, 4096
"""Places of a weight file that the fingerprint reads, and how much at each."""
LENGTH_BYTES = 8


def fingerprint(*places: Path) -> str:
    """A name for what a checkpoint holds; changes whenever weights or configs do.

    Covers configs and vocabularies whole; of each weight file the size, the header and
    `SAMPLES` places spread over it, so that even the largest takes well under a second. Of a file
    in an object store these are ranges, and the fingerprint is that of a copy on the disk.

    Args:
        places: its folder, or several, or single files.

    Raises: CheckpointError: a file cannot be read; StoreAway: not now.
    """
    digest = hashlib.sha256()
    for file in (file for place in places for file in _files(place)):
        try:
            parts = _weights(file) if file.suffix == ".safetensors" else _whole(file)
            for part in parts:
                digest.update(part)
        except OSError as error:
            raise unreadable(file, error) from error
    return digest.hexdigest()[:32]


def config_digest(*places: Path) -> str:
    """Return what programs depend on of a checkpoint: its configs, and none of its weights' bytes.

    Covers each `.json` but the indices of weights, and of single weight files the header. So it is
    the same where only configs were fetched.

    Args:
        places: as `fingerprint`.

    Raises: CheckpointError: a file cannot be read; StoreAway: not now.
    """
    digest = hashlib.sha256()
    for place in places:
        for file in _files(place):
            try:
                text = _of_programs(file, alone=file == place)
            except OSError as error:
                raise unreadable(file, error) from error
            if text is not None:
                name = file.name if file == place else file.relative_to(place).as_posix()
                digest.update(hashlib.sha256(name.encode() + b"\0" + text).digest())
    return digest.hexdigest()[:32]


def _of_programs(file: Path, *, alone: bool) -> bytes | None:
    """Return the part of a file that programs depend on; None: it has none."""
    if file.suffix == ".json" and not file.name.endswith(".index.json"):
        return file.read_bytes()
    if file.suffix == ".safetensors" and alone:
        opened = open_weights(file)
        try:
            header = int.from_bytes(_read(opened, 0, LENGTH_BYTES), "little")
            return _read(opened, LENGTH_BYTES, header)
        finally:
            opened.close()
    return None


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*") if path.is_file())


def _whole(file: Path) -> Iterator[bytes]:
    if file.suffix in (".json", ".txt", ".model"):
        yield hashlib.sha256(file.name.encode()).digest()
        yield hashlib.sha256(file.read_bytes()).digest()


def _weights(file: Path) -> tuple[bytes, ...]:
    """Raises: OSError, CheckpointError."""
    reference = reference_of(file)
    return _of_file(file) if reference is None else _of_object(file, reference)


@lru_cache
def _of_object(file: Path, reference: ObjectReference) -> tuple[bytes, ...]:
    """Digests of a version of an object, which never change."""
    return _of_file(file)


def _of_file(file: Path) -> tuple[bytes, ...]:
    opened = open_weights(file)
    try:
        return tuple(_sampled(file.name, opened))
    finally:
        opened.close()


def _read(file: WeightFile, start: int, size: int) -> bytes:
    stop = min(start + size, file.size)
    return bytes(file.read(start, stop, aligned)) if start < stop else b""


def _sampled(name: str, file: WeightFile) -> Iterator[bytes]:
    def digest(start: int, size: int) -> bytes:
        return hashlib.sha256(_read(file, start, size)).digest()

    yield hashlib.sha256(f"{name} {file.size}".encode()).digest()
    header = int.from_bytes(_read(file, 0, LENGTH_BYTES), "little")
    last = max(0, file.size - SAMPLE_BYTES)
    samples = [(last * sample // (SAMPLES - 1), SAMPLE_BYTES) for sample in range(SAMPLES)]
    spots = [(LENGTH_BYTES, min(header, file.size)), *samples]
    with ThreadPoolExecutor(file.readers, "fingerprint") as threads:
        yield from threads.map(digest, *zip(*spots, strict=True))
