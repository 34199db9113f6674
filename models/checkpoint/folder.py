"""Checkpoint folder in diffusers' layout: its configs, presets and safetensors files.

model_index.json
scheduler/scheduler_config.json
transformer/config.json, diffusion_pytorch_model.safetensors (or shards and an index)
text_encoder/config.json, model.safetensors (or shards and an index) …
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from models.spec.file_kinds import (
    BEGINNING_BYTES,
    TEXT,
    UNKNOWN,
    has_weight_ending,
    kind_of,
)
from models.spec.hires import FIELD as HIRES
from models.spec.quality_presets import Quality

BASES = ("diffusion_pytorch_model", "model")
"""Base names of weight files in diffusers and transformers."""

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


log = logging.getLogger(__name__)


class CheckpointError(Exception):
    """Unusable checkpoint; the message contains the reason and the remedy."""


class UnsupportedCheckpoint(CheckpointError):
    """Error of a valid checkpoint whose kind is not supported."""


class WeightsError(CheckpointError):
    """Mismatch between a component's arrays and its config; lists all offending keys."""

    def __init__(
        self,
        component: str,
        *,
        missing: tuple[str, ...] = (),
        stray: tuple[str, ...] = (),
        misshapen: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (),
        mistyped: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.component = component
        self.missing = missing
        self.stray = stray
        self.misshapen = misshapen
        """(key, expected shape, found shape), shapes as in the file."""
        self.mistyped = mistyped
        """(key, stored type): quantized or integer weights."""
        lines = [
            *(f"missing: {key}" for key in missing),
            *(f"stray: {key}" for key in stray),
            *(f"misshapen: {key} should be {list(a)} and is {list(b)}" for key, a, b in misshapen),
            *(
                f"of another type: {key} is {kind}, no weight that is read, or without its scale"
                for key, kind in mistyped
            ),
        ]
        head = f"{component}: the weights do not fit config.json; check that both belong together"
        super().__init__("\n  ".join([head, *lines]))


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, sorted; links to folders are followed.

    A link to a folder that contains it leads nowhere. Folders without permission are skipped.
    """
    return sorted(_files_below(folder, frozenset()))


def _files_below(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    status = folder.stat()
    place = (status.st_dev, status.st_ino)
    if place in above:
        return
    with suppress(PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files_below(folder / entry.name, above | {place})
            elif entry.is_file():
                yield folder / entry.name


BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError)
"""Exceptions that invalid config values can cause anywhere in the code."""


@contextmanager
def checkpoint_errors(source: object, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert exceptions caused by a broken checkpoint to CheckpointError, which is permanent.

    Args:
        passing: exceptions to propagate unchanged.
    """
    unchanged: tuple[type[Exception], ...] = (CheckpointError, *passing)
    try:
        yield
    except unchanged:
        raise
    except ValueError as error:
        raise CheckpointError(f"{source}: {error}") from error
    except BROKEN as error:
        log.exception("%s cannot be served", source)
        raise CheckpointError(
            f"{source}: its configs or weights are not supported"
            f" ({type(error).__name__}: {error}); compare them with the published ones"
        ) from error


def unreadable(file: Path, error: OSError) -> CheckpointError:
    """Return the error for a file that cannot be read."""
    return CheckpointError(f"{file}: cannot be read ({error.strerror or error})")


def read_model_index(folder: Path) -> dict[str, Any]:
    """Read `model_index.json`: the classes of the pipeline and its components.

    Raises:
        CheckpointError: no such folder, no index, or invalid JSON.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    if not (folder / "model_index.json").is_file():
        raise CheckpointError(
            f"{folder}: no model_index.json, so this is not a checkpoint in diffusers' layout; "
            "single-file checkpoints must be converted (in diffusers: from_single_file, "
            "then save_pretrained)"
        )
    index = read_json(folder / "model_index.json")
    if not isinstance(index.get("_class_name"), str):
        raise CheckpointError(f"{folder / 'model_index.json'}: no _class_name, so no known kind")
    return index


def read_config(folder: Path, component: str) -> dict[str, Any]:
    """Read a component's config: `config.json`, or `<component>_config.json` (the scheduler's).

    Raises:
        CheckpointError: no such folder or file, or invalid JSON.
    """
    home = folder / component
    if not home.is_dir():
        raise CheckpointError(
            f"{folder}: no folder {component!r} in it; the checkpoint is not whole"
        )
    names = ("config.json", f"{component}_config.json")
    file = next((home / name for name in names if (home / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{home}: neither {names[0]} nor {names[1]} in it")
    return read_json(file)


def read_scheduler(folder: Path) -> dict[str, Any]:
    """Read the scheduler's config, with the class that `model_index.json` names.

    diffusers' pipelines use that class; the config may name the scheduler that wrote it.

    Raises:
        CheckpointError: as `read_model_index` and `read_config`.
    """
    config, entry = read_config(folder, "scheduler"), read_model_index(folder).get("scheduler")
    name = entry[-1] if isinstance(entry, list) and entry else None
    return {**config, "_class_name": name} if isinstance(name, str) else config


def read_defaults(folder: Path) -> dict[str, Any]:
    """Read the checkpoint's defaults of request fields from `atelier.json`; empty if absent.

    Raises:
        CheckpointError: invalid JSON, or its `defaults` are not an object.
    """
    file = folder / "atelier.json"
    defaults = read_json(file).get("defaults", {}) if file.is_file() else {}
    if not isinstance(defaults, dict):
        raise CheckpointError(f"{file}: defaults should be a JSON object of request fields")
    return defaults


def default_scheduler(folder: Path, defaults: Mapping[str, Any] | None) -> str | None:
    """Return the name of the default scheduler of requests, if any; arguments as below.

    Raises: CheckpointError: as `read_defaults`.
    """
    chosen = {**read_defaults(folder), **(defaults or {})}
    name: str | None = (chosen.get("scheduler") or {}).get("name")
    return name


def chosen_defaults(
    name: str, folder: Path, defaults: Mapping[str, Any], fields: Collection[str]
) -> dict[str, Any]:
    """Merge the checkpoint's defaults with the operator's, which take precedence.

    Hires fix is not a family's field; its defaults are validated once the spec is complete.

    Raises: ValueError: a default names an unknown field.
    """
    chosen = {**read_defaults(folder), **defaults}
    if unknown := sorted(chosen.keys() - {*fields, HIRES}):
        raise ValueError(f"defaults of {name!r} name fields that it does not have: {unknown}")
    return chosen


def read_reference_px(folder: Path) -> int | None:
    """Read the checkpoint's side of square references from `atelier.json`; None if absent.

    Raises:
        CheckpointError: invalid JSON, or not a positive number.
    """
    file = folder / "atelier.json"
    side = read_json(file).get("reference_px") if file.is_file() else None
    if side is not None and (type(side) is not int or side < 1):
        raise CheckpointError(f"{file}: reference_px should be a positive number of pixels")
    return side


def read_qualities(folder: Path) -> dict[str, Quality]:
    """Read the checkpoint's presets of `quality` from `atelier.json`; empty if absent.

    Raises:
        CheckpointError: invalid JSON or preset; names it.
    """
    file = folder / "atelier.json"
    presets = read_json(file).get("quality", {}) if file.is_file() else {}
    try:
        return TypeAdapter(dict[str, Quality]).validate_python(presets)
    except ValidationError as error:
        raise CheckpointError(f"{file}: quality: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read an object from a JSON file. Raises: CheckpointError: invalid JSON, or no object."""
    content = file.read_bytes()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON ({error}); {_remedy(content)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: should hold a JSON object")
    return value


def _remedy(content: bytes) -> str:
    """Return what to do about a config that is no JSON, but another kind of file."""
    kind = kind_of(content[:BEGINNING_BYTES], len(content))
    return "fetch it again" if kind in (TEXT, UNKNOWN) else f"it is {kind.refusal}"


def weight_files(folder: Path, variant: str | None = None) -> tuple[Path, ...]:
    """Return a component's safetensors files: a single file, or the shards of an index.

    Args:
        folder: the component's folder.
        variant: the part of the name in `model.fp16.safetensors`. Default: the plain files if they
            exist, else a variant.

    Raises:
        CheckpointError: no files, only pickled files, or a missing shard.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; the checkpoint is not whole")
    variants = [variant] if variant else [None, *_variants(folder)]
    for name in variants:
        if files := _files_of(folder, name):
            return files
    raise CheckpointError(_nothing_to_read(folder, variant))


def _files_of(folder: Path, variant: str | None) -> tuple[Path, ...]:
    dot = f".{variant}" if variant else ""
    for base in BASES:
        single = folder / f"{base}{dot}.safetensors"
        if single.is_file():
            return (single,)
        indices = (f"{base}.safetensors.index{dot}.json", f"{base}{dot}.safetensors.index.json")
        for index in indices:
            if (folder / index).is_file():
                return _shards(folder / index)
    return ()


def _shards(index: Path) -> tuple[Path, ...]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: no weight_map in it; fetch it again")
    names = sorted({str(name) for name in weight_map.values()})
    outside = [name for name in names if Path(name).name != name or not has_weight_ending(name)]
    if outside:
        raise CheckpointError(
            f"{index}: names no safetensors file of its folder: {', '.join(outside)}"
        )
    absent = [name for name in names if not (index.parent / name).is_file()]
    if absent:
        raise CheckpointError(f"{index.parent}: missing shards: {', '.join(absent)}; fetch them")
    return tuple(index.parent / name for name in names)


def _variants(folder: Path) -> list[str]:
    name = re.compile(
        rf"(?:{'|'.join(BASES)})"
        r"(?:\.safetensors\.index\.(\w+)\.json|\.(\w+)\.safetensors(?:\.index\.json)?)"
    )
    matches = (name.fullmatch(path.name) for path in folder.iterdir())
    return sorted({match[1] or match[2] for match in matches if match})


def _nothing_to_read(folder: Path, variant: str | None) -> str:
    if variant and (others := [None, *_variants(folder)]):
        available = [name or "the plain one" for name in others if _files_of(folder, name)]
        if available:
            return f"{folder}: no weights of variant {variant!r}; there are: {', '.join(available)}"
    paths = sorted(folder.iterdir())
    if dangling := [path.name for path in paths if path.is_symlink() and not path.exists()]:
        return f"{folder}: broken symbolic links ({', '.join(dangling)}); fetch the files again"
    pickled = [path.name for path in paths if path.suffix in PICKLED]
    if pickled:
        return (
            f"{folder}: only pickled weights ({', '.join(pickled)}), which can run code when they "
            "are read and are never opened; convert them to safetensors (load them where you "
            "trust them, then save_pretrained with safe_serialization)"
        )
    return f"{folder}: no safetensors weights ({' or '.join(BASES)}.safetensors, or an index)"
