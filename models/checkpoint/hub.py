"""Location of a checkpoint: a local folder, one in an object store, or a hub id that is fetched."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from models.checkpoint.folder import CheckpointError
from models.checkpoint.object_folder import copy_of, is_url, object_file, object_folder

PATTERNS = ("*.json", "*.txt", "*.model", "*/*.safetensors")
"""Files that are ever fetched. Weights only from the components' folders: those in a hub
repository's root are the same ones in another layout. Never a pickle."""

CONFIGS = ("*.json", "*.txt", "*.model")
"""Configs and tokenizers alone, for weights that come from elsewhere."""

_HUB_FILE = re.compile(r"(?P<id>[\w.-]+/[\w.-]+(?:@[\w./-]+)?)(?::(?P<file>[\w./ -]+))?")
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


def resolve(
    source: str,
    *,
    patterns: tuple[str, ...] = PATTERNS,
    endpoint: str | None = None,
    cache: Path | None = None,
) -> Path:
    """The folder of a checkpoint: a path, `s3://bucket/path`, `owner/name`, `owner/name@revision`.

    A hub id is downloaded once, then taken from the local cache; with a commit for a revision
    it never changes. Of an object store weights stay there (`object_folder.py`).

    Args:
        patterns: of the files to fetch from a hub.
        endpoint, cache: another hub's address, another place for the cache; left out:
            huggingface_hub's own, which its environment variables set.

    Raises:
        CheckpointError: neither a folder nor a hub id, or the hub or store does not give it out.
        StoreAway: the object store does not answer.
    """
    if is_url(source):
        return object_folder(source)
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        return folder
    match = _HUB_ID.fullmatch(source)
    if match is None:
        raise CheckpointError(f"{source}: no such folder, and no hub id (owner/name@revision)")
    try:
        fetched = snapshot_download(
            match["repo"],
            revision=match["revision"],
            allow_patterns=list(patterns),
            endpoint=endpoint,
            cache_dir=cache,
        )
    except HFValidationError as error:
        raise CheckpointError(f"{source}: no such folder, and no hub id: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise CheckpointError(
            f"{source}: no such folder, and the hub does not give it: {error}; check the name, "
            "the connection and, for gated models, HF_TOKEN"
        ) from error
    return Path(fetched)


def single_file(source: str) -> Path | None:
    """Return the file of a source that names a single one; None: it names a folder or a hub id.

    Raises: CheckpointError, StoreAway: as `resolve`.
    """
    if is_url(source):
        return object_file(source) if source.endswith(".safetensors") else None
    path = Path(source).expanduser()
    return path if source and path.is_file() else None


def resolve_file(
    source: str, *, endpoint: str | None = None, cache: Path | None = None, whole: bool = False
) -> Path:
    """The safetensors file given as a path, an address in an object store, or as `hub-id:file`.

    Of a folder or hub id the name may be left out where there is but one.

    Args:
        endpoint, cache: as `resolve`.
        whole: with all its bytes on this machine, of an object store, too.

    Raises:
        CheckpointError: there is no such file, or there are several; says which.
        StoreAway: the object store does not answer.
    """
    if whole and is_url(source):
        return copy_of(source)
    if file := single_file(source):
        return file
    match = _HUB_FILE.fullmatch(source)
    if is_url(source) or Path(source).expanduser().is_dir() or match is None:
        return _only_file(source, resolve(source))
    pattern = match["file"] or "*.safetensors"
    folder = resolve(match["id"], patterns=(pattern,), endpoint=endpoint, cache=cache)
    if match["file"] is None:
        return _only_file(source, folder)
    if not (folder / match["file"]).is_file():
        raise CheckpointError(f"{source}: the hub has no file {match['file']!r} there")
    return folder / match["file"]


def _only_file(source: str, folder: Path) -> Path:
    """Raises: CheckpointError: there is none, or there are several."""
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise CheckpointError(f"{source}: name one safetensors file of it; there is {names}")
    return found[0]
