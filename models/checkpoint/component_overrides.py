"""Checkpoint folders with parts that the operator chose: a folder of links, in diffusers' layout.

The loaders then read it as any other checkpoint, and its fingerprint covers the chosen files.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from models.checkpoint.folder import (
    BASES,
    CheckpointError,
    files_below,
    read_json,
    read_model_index,
    read_scheduler,
)
from models.checkpoint.hub import resolve, single_file
from models.spec.file_kinds import has_weight_ending

PARTS = ("vae", "text_encoder", "text_encoder_2", "transformer_2", "scheduler")
"""Components that may be chosen, by the names of their folders."""
CONFIG, INDEX = "config.json", "model_index.json"
SCHEDULER, SCHEDULER_CONFIG = "scheduler", "scheduler_config.json"


def with_parts(folder: Path, parts: Mapping[str, str]) -> Path:
    """Return a checkpoint's folder in which these components are replaced.

    Args:
        parts: by component, a source: a folder or hub id of the component or of a whole checkpoint,
            or a weight file, which takes the config of the checkpoint; of the scheduler, its config
            file.

    Raises: CheckpointError: the checkpoint has no such component, or the source has none.
    """
    return _with_parts(folder, tuple(sorted(parts.items()))) if parts else folder


@lru_cache
def _with_parts(folder: Path, parts: tuple[tuple[str, str], ...]) -> Path:
    """Create the folder once per process."""
    top = Path(tempfile.mkdtemp(prefix="atelier-parts-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    chosen = top / folder.name
    links = _links_of(folder, "")
    for component, source in parts:
        if component == SCHEDULER:
            links |= _scheduler_links(folder, source, top)
            continue
        if not (folder / component).is_dir():
            raise CheckpointError(f"{component} is set, but {folder} has no {component}")
        kept = {
            path: file
            for path, file in links.items()
            if not path.startswith(f"{component}/") or path == f"{component}/{CONFIG}"
        }
        links = kept | _links(component, source)
    for path, file in links.items():
        (chosen / path).parent.mkdir(parents=True, exist_ok=True)
        (chosen / path).symlink_to(file.absolute())
    return chosen


def _scheduler_links(folder: Path, source: str, top: Path) -> dict[str, Path]:
    """Return the config of a scheduler, and an index of the checkpoint that names its class.

    Args:
        top: folder that the index is written to.

    Raises: CheckpointError: the source has no scheduler, or invalid JSON.
    """
    file, name = _scheduler_of(source)
    links = {f"{SCHEDULER}/{SCHEDULER_CONFIG}": file}
    if name in (None, read_scheduler(folder).get("_class_name")):
        return links
    index = {**read_model_index(folder), SCHEDULER: ["diffusers", name]}
    (top / INDEX).write_text(json.dumps(index))
    return links | {INDEX: top / INDEX}


def _scheduler_of(source: str) -> tuple[Path, str | None]:
    """Return the config file of a scheduler, and its class. Raises: CheckpointError."""
    if file := single_file(source):
        return file, read_json(file).get("_class_name")
    whole = resolve(source, patterns=(INDEX, f"{SCHEDULER}/*.json"))
    inner = whole / SCHEDULER / SCHEDULER_CONFIG
    if inner.is_file() and (whole / INDEX).is_file():
        return inner, read_scheduler(whole).get("_class_name")
    for file in (inner, resolve(source, patterns=(SCHEDULER_CONFIG,)) / SCHEDULER_CONFIG):
        if file.is_file():
            return file, read_json(file).get("_class_name")
    raise CheckpointError(
        f"{SCHEDULER}: {source} has neither {SCHEDULER_CONFIG} nor {SCHEDULER}/{SCHEDULER_CONFIG}; "
        "give a config file, a folder or a hub id of a scheduler or of a whole checkpoint"
    )


def _links(component: str, source: str) -> dict[str, Path]:
    """Return the files of a component by their paths in a checkpoint.

    Raises: CheckpointError: the source has no such component.
    """
    if file := single_file(source):
        base = BASES[1] if component.startswith("text_encoder") else BASES[0]
        return {f"{component}/{base}.safetensors": file}
    for home in _homes(component, source):
        if (home / CONFIG).is_file():
            return _links_of(home, f"{component}/")
    raise CheckpointError(
        f"{component}: {source} has neither {CONFIG} nor {component}/{CONFIG}; give a file, a "
        "folder or a hub id of the part or of a whole checkpoint"
    )


def _homes(component: str, source: str) -> Iterator[Path]:
    """Yield folders that may hold a component: inside a whole checkpoint, or the source itself."""
    whole = resolve(source, patterns=(f"{component}/*.json", f"{component}/*.safetensors"))
    yield whole / component
    yield resolve(source, patterns=(CONFIG, *(f"{base}*.safetensors*" for base in BASES)))


def _links_of(folder: Path, prefix: str) -> dict[str, Path]:
    """Return a folder's files by their paths, without those of another layout at its root."""
    return {
        prefix + path.relative_to(folder).as_posix(): path
        for path in files_below(folder)
        if prefix or path.parent != folder or not has_weight_ending(path.name)
    }
