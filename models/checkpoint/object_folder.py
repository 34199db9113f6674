"""Checkpoints in an object store, as folders on the disk that hold everything but the weights.

Configs and tokenizers are fetched; in place of each file of weights lies a reference to its object
(`object_file.py`), in the version that it has when the folder is first asked for. A process sees
one version of a checkpoint, however often it asks; the folders are gone with it.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import obstore

from models.checkpoint.direct_io import Scratch
from models.checkpoint.folder import PICKLED, CheckpointError
from models.checkpoint.object_file import ObjectFile, ObjectReference, store_at, tried

TEXTS = (".json", ".txt", ".model")
"""Endings of configs and vocabularies."""
WEIGHTS = ".safetensors"
MAX_TEXT_BYTES = 64 << 20
"""Size up to which a file is taken for a config or vocabulary."""
MOST = 10_000
"""Objects below one prefix."""
FETCHERS = 16


def is_url(source: str) -> bool:
    """Return whether a source is an address in an object store."""
    return "://" in source


@lru_cache
def object_folder(url: str) -> Path:
    """Lay out a checkpoint of a store: `s3://bucket/prefix`, `gs://bucket/prefix`, ….

    Raises: CheckpointError: nothing is there, or it may not be read; StoreAway: not now.
    """
    root = url.rstrip("/")
    folder, found = _new_folder(root), tried(lambda: list(_listed(root)), root)
    if not found:
        raise CheckpointError(f"{url}: the store has nothing there; correct the path, or upload it")
    with ThreadPoolExecutor(FETCHERS, "configs") as threads:
        list(threads.map(lambda one: _lay(folder, one), found))
    return folder


@lru_cache
def object_file(url: str) -> Path:
    """Lay out a single file of weights of a store, as a reference.

    Raises: as `object_folder`.
    """
    root, _, name = url.rpartition("/")
    meta = tried(lambda: obstore.head(store_at(root), name), url)
    path = _new_folder(root) / name
    _reference(root, meta).write(path)
    return path


@lru_cache
def copy_of(url: str) -> Path:
    """Fetch a file of a store as a whole, for who reads it by other ways. Raises: as above."""
    root, _, name = url.rpartition("/")
    meta = tried(lambda: obstore.head(store_at(root), name), url)
    path, memory = _new_folder(root) / name, Scratch()
    source = ObjectFile(_reference(root, meta))
    with path.open("wb") as file:
        for start in range(0, source.size, MAX_TEXT_BYTES):
            end = min(start + MAX_TEXT_BYTES, source.size)
            file.write(source.read(start, end, memory.take).data)
    return path


def _new_folder(root: str) -> Path:
    """Return a folder whose path ends as the address does: messages name files in it."""
    top = Path(tempfile.mkdtemp(prefix="atelier-objects-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    folder = top / root.replace("://", "/")
    folder.mkdir(parents=True)
    return folder


def _listed(root: str) -> Iterator[ObjectReference]:
    """Raises: CheckpointError: more than a checkpoint has lies below there; BaseError."""
    count = 0
    for page in obstore.list(store_at(root)):
        count += len(page)
        if count > MOST:
            raise CheckpointError(
                f"{root}: more than {MOST} objects lie there; name the checkpoint's own prefix"
            )
        yield from (_reference(root, meta) for meta in page)


def _reference(root: str, meta: Any) -> ObjectReference:
    """Raises: CheckpointError: the store has no versions."""
    if not meta["e_tag"]:
        raise CheckpointError(
            f"{root}/{meta['path']}: the store gives no ETag, by which a change would be seen"
        )
    return ObjectReference(root, meta["path"], meta["e_tag"], meta["size"])


def _lay(folder: Path, one: ObjectReference) -> None:
    """Raises: CheckpointError; StoreAway."""
    key = PurePosixPath(one.key)
    if ".." in key.parts:
        raise CheckpointError(f"{one.url}: a name that leads elsewhere")
    path, is_text = folder / key, key.suffix in TEXTS and one.size <= MAX_TEXT_BYTES
    if not (is_text or key.suffix in (WEIGHTS, *PICKLED)):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if key.suffix == WEIGHTS:
        one.write(path)
    elif is_text:
        path.write_bytes(ObjectFile(one).read(0, one.size, Scratch().take).data)
    else:
        path.touch()  # never read: that it is there says why nothing else may be
