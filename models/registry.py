"""Registry of families, and loading of their checkpoints. No JAX.

A family's networks are imported when one of its checkpoints is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from models.checkpoint.component_overrides import with_parts
from models.checkpoint.folder import (
    CheckpointError,
    UnsupportedCheckpoint,
    checkpoint_errors,
    read_model_index,
)
from models.checkpoint.hub import CONFIGS, resolve, single_file
from models.chroma.family import FAMILY as CHROMA
from models.flux.family import FAMILY as FLUX
from models.flux2.family import FAMILY as FLUX2
from models.interface.family import Family, LoadOption
from models.krea2.family import FAMILY as KREA2
from models.ltx.family import FAMILY as LTX
from models.qwenimage.family import FAMILY as QWENIMAGE
from models.qwenimage21.family import FAMILY as QWENIMAGE21
from models.sdxl.family import FAMILY as SDXL
from models.wan.family import FAMILY as WAN
from models.zimage.family import FAMILY as ZIMAGE

if TYPE_CHECKING:
    from models.interface.pipeline import Pipeline
    from models.loading.sources import Reading

FAMILIES: tuple[Family, ...] = (
    *(SDXL, FLUX, LTX, QWENIMAGE, QWENIMAGE21, FLUX2, ZIMAGE, KREA2, WAN, CHROMA),
)

BY_PIPELINE: Mapping[str, Family] = {
    class_name: family for family in FAMILIES for class_name in family.pipelines
}
"""`_class_name` of a checkpoint's model_index.json → the family that supports it."""

BASES: Mapping[str, str] = {
    prefix: base
    for family in FAMILIES
    if family.single_files is not None
    for prefix, base in family.single_files.bases.items()
}
"""Bases of single files by the prefix of one of their keys; the longest prefix decides."""

SECOND_EXPERT = "transformer_2"
NO_PARTS: Mapping[str, str] = MappingProxyType({})
REFUSALS: Mapping[LoadOption, str] = {
    "image_prompts": "image_prompts are set, but {} does not support them",
    "controls": "controls are set, but {} does not support them",
    "refiner": "refiner is set, but {} does not support it",
    "latent_upsampler": "latent_upsampler is set, but {} does not support it",
    "token_buckets": "token_buckets is set, but {} does not support it",
}
"""Errors for options that the family of a pipeline class does not support."""


def family_of(class_name: str) -> Family:
    """Return the family of a pipeline class. Raises: UnsupportedCheckpoint."""
    if class_name not in BY_PIPELINE:
        raise UnsupportedCheckpoint(
            f"{class_name} is not supported; model_index.json must name "
            f"{' or '.join(sorted(BY_PIPELINE))}"
        )
    return BY_PIPELINE[class_name]


def family(source: str, base: str | None = None) -> str:
    """Return the family's name, from a checkpoint's index alone. Raises: as `load`."""
    file = single_file(source)
    folder = resolve(base or base_of(file), patterns=CONFIGS) if file else resolve(source)
    return family_of(read_model_index(folder)["_class_name"]).name


def load(
    name: str,
    source: str,
    dtype: str,
    defaults: Mapping[str, Any],
    swap_experts: bool | None = None,
    base: str | None = None,
    parts: Mapping[str, str] = NO_PARTS,
    **how: Any,
) -> Pipeline:
    """Load a model from a checkpoint: configs, tokenizers and weights.

    The source is a folder in diffusers' layout (local or in an object store), a hub id with an
    optional @revision, or a single file with the original keys (safetensors or GGUF).

    Args:
        base: of a single file: the folder or hub id with its configs and tokenizers. Default: a
            folder next to the file named after its stem, or the file's folder if it has a
            model_index.json, or one of `BASES`.
        parts: sources of components that replace the checkpoint's (`component_overrides.py`).
        swap_experts: whether the two experts of a model alternate on the device; None: only if the
            device cannot hold both.
        how: fields of `models.loading.sources.Reading`, such as shardings and dtypes. Here
            `refiner` is a folder, hub id or single file.

    Raises:
        UnsupportedCheckpoint: unsupported kind of checkpoint; lists the supported kinds.
        models.checkpoint.folder.CheckpointError: its files or configs are unusable; names them and
            the reason.
    """
    if file := single_file(source):
        if swap_experts and SECOND_EXPERT not in parts:
            raise CheckpointError(f"{file}: swap_experts is set, but one file has no experts")
        how |= {"parts": parts, "swap_experts": swap_experts}
        return _load_file(name, file, dtype, defaults, base, how)
    if base is not None:
        raise CheckpointError(f"{source}: no such file; only a single file of weights has a base")
    folder, how = with_parts(resolve(source, without=parts), parts), {**how, "parts": tuple(parts)}
    class_name = _class_of(folder, how)
    model_family = family_of(class_name)
    load_family = model_family.loader(class_name)
    if "swap_experts" in model_family.options:
        load_family = partial(load_family, swap_experts=swap_experts)
    elif swap_experts:
        raise CheckpointError(
            f"{folder}: swap_experts is set, or the device does not hold all networks, but "
            f"{class_name} has no experts to swap"
        )
    with checkpoint_errors(folder):
        loaded = load_family(name, folder, dtype, defaults, reading=_reading(class_name, how))
    return _with_distinct_fingerprint(loaded, folder, class_name)


def _load_file(
    name: str,
    file: Path,
    dtype: str,
    defaults: Mapping[str, Any],
    base: str | None,
    how: Mapping[str, Any],
) -> Pipeline:
    """Load a model from a single weight file. Raises: as `load`."""
    keys = import_module(".checkpoint.single_file", __package__).shapes_of(file)
    folder = resolve(base or base_of(file), patterns=CONFIGS)
    class_name = _class_of(folder, how)
    model_family = BY_PIPELINE.get(class_name)
    if model_family is None or model_family.single_files is None:
        raise UnsupportedCheckpoint(f"{file}: single files of {class_name} are not supported")
    if further := model_family.single_files.patterns(keys):
        patterns = (*CONFIGS, *further)
        folder = resolve(base or base_of(file), patterns=patterns, without=how["parts"])
    folder, how = with_parts(folder, how["parts"]), {**how, "parts": tuple(how["parts"])}
    load_family, swap_experts = model_family.loader(class_name), how.pop("swap_experts")
    if "swap_experts" in model_family.options:
        load_family = partial(load_family, swap_experts=swap_experts)
    try:
        reading = _reading(class_name, how)
        loaded = load_family(name, folder, dtype, defaults, file=file, reading=reading)
    except ValueError as error:
        raise CheckpointError(f"{file}, with the configs of {folder}: {error}") from error
    return _with_distinct_fingerprint(loaded, folder, class_name)


def _class_of(folder: Path, how: Mapping[str, Any]) -> str:
    """Return the class of a checkpoint's pipeline, in diffusers' naming.

    Raises: CheckpointError: `pipeline` is set, and this checkpoint does not support it.
    """
    published: str = read_model_index(folder)["_class_name"]
    requested: str | None = how.get("pipeline")
    if requested is None or requested == published:
        return published
    model_family = family_of(published)
    supported = [published]
    if "pipeline" in model_family.options:
        supported = sorted(model_family.pipelines)
    if requested not in supported:
        raise CheckpointError(
            f"{folder}: pipeline is {requested}, but it can only be {' or '.join(supported)}"
        )
    return requested


def _with_distinct_fingerprint(pipeline: Pipeline, folder: Path, class_name: str) -> Pipeline:
    """Change the fingerprint if the pipeline class differs from the checkpoint's.

    The same weights then generate different images.
    """
    if class_name != read_model_index(folder)["_class_name"]:
        key = f"{pipeline.spec.fingerprint} {class_name}"
        fingerprint = hashlib.sha256(key.encode()).hexdigest()
        pipeline.spec = pipeline.spec.model_copy(update={"fingerprint": fingerprint})
    return pipeline


def _reading(class_name: str, how: Mapping[str, Any]) -> Reading:
    """Convert loading options to a `Reading`.

    Raises: CheckpointError: the family does not support an option.
    """
    for option, refusal in REFUSALS.items():
        if how.get(option) and option not in BY_PIPELINE[class_name].options:
            raise CheckpointError(refusal.format(class_name))
    sources = import_module(".loading.sources", __package__)
    refiner = _place(how["refiner"]) if how.get("refiner") else None
    reading: Reading = sources.Reading(
        **{**how, "refiner": refiner and sources.CheckpointSource(*refiner)}
    )
    return reading


def _place(source: str) -> tuple[Path, Path | None]:
    """Return the folder of an additional checkpoint, such as a refiner, and any weight file."""
    if file := single_file(source):
        return resolve(base_of(file), patterns=CONFIGS), file
    return resolve(source), None


def base_of(file: Path) -> str:
    """Return the default source of a single file's configs and tokenizers."""
    for folder in (file.with_suffix(""), file.parent):
        if (folder / "model_index.json").is_file():
            return str(folder)
    keys = import_module(".checkpoint.single_file", __package__).shapes_of(file)
    prefixes = (prefix for prefix in BASES if any(key.startswith(prefix) for key in keys))
    return BASES[max(prefixes, key=len, default="")]
