"""Local mirror of a checkpoint in an object store: everything except the weights.

Configs and tokenizers are downloaded. Each weight file is replaced by a reference to its object
(`object_file.py`), pinned to the version at the first access. A process therefore reads a single
version of a checkpoint. The mirrors are deleted when the process exits.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import obstore

from models.checkpoint.direct_io import Scratch
from models.checkpoint.folder import PICKLED, CheckpointError
from models.checkpoint.object_file import ObjectFile, ObjectReference, store_at, with_retries
from models.spec.file_kinds import PEFT_CONFIG, PEFT_FILE, has_weight_ending

TEXTS = (".json", ".txt", ".model")
"""File extensions of configs and vocabularies."""
MAX_TEXT_BYTES = 64 << 20
"""Maximum size of a file that counts as a config or vocabulary."""
MAX_OBJECTS = 10_000
"""Maximum number of objects below one prefix."""
FETCHERS = 16


def is_url(source: str) -> bool:
    """Return whether a source is a URL of an object store."""
    return "://" in source


@lru_cache
def object_folder(url: str) -> Path:
    """Mirror a checkpoint of an object store: `s3://bucket/prefix`, `gs://bucket/prefix`, ….

    Raises: CheckpointError: the prefix is empty or unreadable; StoreUnavailable: the store is
    unavailable.
    """
    root = url.rstrip("/")
    folder, references = _new_folder(root), with_retries(lambda: list(_listed(root)), root)
    if not references:
        raise CheckpointError(
            f"{url}: no objects have this prefix; correct the path, or upload the checkpoint"
        )
    with ThreadPoolExecutor(FETCHERS, "configs") as threads:
        list(threads.map(lambda reference: _write_counterpart(folder, reference), references))
    return folder


@lru_cache
def object_file(url: str) -> Path:
    """Mirror a single weight file of an object store, as a reference.

    Raises: as `object_folder`.
    """
    root, _, name = url.rpartition("/")
    meta = with_retries(lambda: obstore.head(store_at(root), name), url)
    path = _new_folder(root) / name
    _reference(root, meta).write(path)
    return path


@lru_cache
def copy_of(url: str) -> Path:
    """Download a complete weight file of an object store, with PEFT's config next to it.

    Raises: as `object_folder`.
    """
    root, _, name = url.rpartition("/")
    folder = _new_folder(root)
    if name == PEFT_FILE:
        with suppress(CheckpointError):  # there is none
            _download(root, PEFT_CONFIG, folder)
    return _download(root, name, folder)


def _download(root: str, name: str, folder: Path) -> Path:
    meta = with_retries(lambda: obstore.head(store_at(root), name), f"{root}/{name}")
    path, memory = folder / name, Scratch()
    source = ObjectFile(_reference(root, meta))
    with path.open("wb") as file:
        for start in range(0, source.size, MAX_TEXT_BYTES):
            end = min(start + MAX_TEXT_BYTES, source.size)
            file.write(source.read(start, end, memory.take).data)
    return path


def _new_folder(root: str) -> Path:
    """Create a temporary folder whose path ends like the URL, for readable messages."""
    top = Path(tempfile.mkdtemp(prefix="atelier-objects-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    folder = top / root.replace("://", "/")
    folder.mkdir(parents=True)
    return folder


def _listed(root: str) -> Iterator[ObjectReference]:
    """Yield references to the objects below a prefix.

    Raises: CheckpointError: too many objects; BaseError.
    """
    count = 0
    for page in obstore.list(store_at(root)):
        count += len(page)
        if count > MAX_OBJECTS:
            raise CheckpointError(
                f"{root}: more than {MAX_OBJECTS} objects have this prefix; give the prefix of "
                "one checkpoint"
            )
        yield from (_reference(root, meta) for meta in page)


def _reference(root: str, meta: Any) -> ObjectReference:
    """Return a reference to an object's current version.

    Raises: CheckpointError: the store returns no ETag.
    """
    if not meta["e_tag"]:
        raise CheckpointError(
            f"{root}/{meta['path']}: the store returns no ETag, by which changes are detected"
        )
    return ObjectReference(root, meta["path"], meta["e_tag"], meta["size"])


def _write_counterpart(folder: Path, reference: ObjectReference) -> None:
    """Write an object's local counterpart: a reference, a text, or an empty pickle file.

    Raises: CheckpointError; StoreUnavailable.
    """
    key = PurePosixPath(reference.key)
    if ".." in key.parts:
        raise CheckpointError(f"{reference.url}: its name leads outside the folder")
    path, is_text = folder / key, key.suffix in TEXTS and reference.size <= MAX_TEXT_BYTES
    is_weights = has_weight_ending(key.name)
    if not (is_text or is_weights or key.suffix in PICKLED):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_weights:
        reference.write(path)
    elif is_text:
        path.write_bytes(ObjectFile(reference).read(0, reference.size, Scratch().take).data)
    else:
        path.touch()  # never read; its name lets messages explain missing weights
