"""Resolution of a checkpoint source: local folder, object store URL, or hub id."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any

from models.checkpoint.folder import CheckpointError
from models.checkpoint.object_folder import copy_of, is_url, object_file, object_folder
from models.spec.file_kinds import PEFT_CONFIG, has_weight_ending

PATTERNS = ("*.json", "*.txt", "*.model", "*/*.safetensors")
"""Files to download. Weights only from components' folders, since a repository's root contains the
same weights in another layout. Never pickles."""

CONFIGS = ("*.json", "*.txt", "*.model")
"""Configs and tokenizers, for weights from another source."""

_HUB_FILE = re.compile(r"(?P<id>[\w.-]+/[\w.-]+(?:@[\w./-]+)?)(?::(?P<file>[\w./ -]+))?")
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


def resolve(
    source: str,
    *,
    patterns: tuple[str, ...] = PATTERNS,
    without: Collection[str] = (),
    endpoint: str | None = None,
    cache: Path | None = None,
) -> Path:
    """Return a checkpoint's folder for a path, `s3://bucket/path` or `owner/name[@revision]`.

    A hub id is downloaded once, then taken from the local cache; with a commit as revision it never
    changes. Weights in an object store are not copied (`object_folder.py`).

    Args:
        patterns: of the files to download from a hub.
        without: components whose weights are not downloaded from a hub.
        endpoint, cache: URL of another hub, folder of another cache; default: huggingface_hub's,
            from its environment variables.

    Raises:
        CheckpointError: neither a folder nor a hub id, or the hub or store denies access.
        StoreUnavailable: the object store is unavailable.
    """
    if is_url(source):
        return object_folder(source)
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        return folder
    match = _HUB_ID.fullmatch(source)
    if match is None:
        raise CheckpointError(f"{source}: no such folder, and no hub id (owner/name@revision)")
    return _download(
        source,
        match["repo"],
        revision=match["revision"],
        allow_patterns=list(patterns),
        ignore_patterns=[f"{component}/*.safetensors" for component in without],
        endpoint=endpoint,
        cache_dir=cache,
    )


def _download(source: str, repository: str, **options: Any) -> Path:
    """Return the folder of a hub's repository; `options` are those of `snapshot_download`."""
    from huggingface_hub import snapshot_download  # slow, and local checkpoints do not need it
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        fetched = snapshot_download(repository, **options)
    except HFValidationError as error:
        raise CheckpointError(f"{source}: no such folder, and no hub id: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise CheckpointError(
            f"{source}: no such folder, and the hub does not provide it: {error}; check the name, "
            "the connection and, for gated models, HF_TOKEN"
        ) from error
    return Path(fetched)


def single_file(
    source: str, *, endpoint: str | None = None, cache: Path | None = None
) -> Path | None:
    """Return the file of a source that names a single file; None: a folder or a hub id.

    A file on the hub is `owner/name:file`, and is downloaded. Arguments as of `resolve`.

    Raises: CheckpointError, StoreUnavailable: as `resolve`.
    """
    if is_url(source):
        return object_file(source) if has_weight_ending(source) else None
    path, match = Path(source).expanduser(), _HUB_FILE.fullmatch(source)
    if source and path.exists():
        return path if path.is_file() else None
    if match is None or match["file"] is None:
        return None
    config = str(PurePosixPath(match["file"]).with_name(PEFT_CONFIG))
    folder = resolve(match["id"], patterns=(match["file"], config), endpoint=endpoint, cache=cache)
    if not (folder / match["file"]).is_file():
        raise CheckpointError(f"{source}: the hub has no file {match['file']!r} there")
    return folder / match["file"]


def resolve_file(
    source: str, *, endpoint: str | None = None, cache: Path | None = None, whole: bool = False
) -> Path:
    """Return a weight file, given as a path, an object store URL, or `hub-id:file`.

    For a folder or hub id with a single file, the name is optional.

    Args:
        endpoint, cache: as `resolve`.
        whole: download the complete file, from an object store too.

    Raises:
        CheckpointError: no such file, or several files; lists them.
        StoreUnavailable: the object store is unavailable.
    """
    if whole and is_url(source):
        url = source.rstrip("/")
        is_file = has_weight_ending(url)
        return copy_of(url if is_file else f"{url}/{_only_file(url, object_folder(url)).name}")
    if file := single_file(source, endpoint=endpoint, cache=cache):
        return file
    patterns = ("*.safetensors", "*.sft", PEFT_CONFIG)
    return _only_file(source, resolve(source, patterns=patterns, endpoint=endpoint, cache=cache))


def _only_file(source: str, folder: Path) -> Path:
    """Return the single weight file of a folder. Raises: CheckpointError: none or several."""
    files = sorted(file for file in folder.iterdir() if has_weight_ending(file.name))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise CheckpointError(f"{source}: name one weight file of it; there is {names}")
    return files[0]
