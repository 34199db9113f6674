"""Registry of supported checkpoint classes and the families that load them. No JAX.

A family's code is imported when one of its checkpoints is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.checkpoint.folder import (
    CheckpointError,
    UnsupportedCheckpoint,
    checkpoint_errors,
    read_model_index,
)
from models.checkpoint.hub import CONFIGS, resolve, single_file

if TYPE_CHECKING:
    from models.interface.pipeline import Pipeline
    from models.loading.sources import Reading

FAMILIES: Mapping[str, str] = {
    "FluxPipeline": ".flux.load",
    "FluxImg2ImgPipeline": ".flux.load",
    "FluxFillPipeline": ".flux.load",
    "FluxControlPipeline": ".flux.load",
    "FluxKontextPipeline": ".flux.load",
    "QwenImagePipeline": ".qwenimage.load",
    "QwenImageEditPipeline": ".qwenimage.edit.load",
    "QwenImageEditInpaintPipeline": ".qwenimage.edit.load",
    "QwenImageEditPlusPipeline": ".qwenimage.edit.load",
    "QwenImageImg2ImgPipeline": ".qwenimage.load",
    "QwenImageInpaintPipeline": ".qwenimage.load",
    "Flux2KleinPipeline": ".flux2.load",
    "StableDiffusionXLPipeline": ".sdxl.load",
    "StableDiffusionXLImg2ImgPipeline": ".sdxl.load",
    "StableDiffusionXLInpaintPipeline": ".sdxl.load",
    "LTX2Pipeline": ".ltx.load",
    "LTX2ImageToVideoPipeline": ".ltx.load",
    "ZImagePipeline": ".zimage.load",
    "ZImageImg2ImgPipeline": ".zimage.load",
    "ZImageInpaintPipeline": ".zimage.load",
    "WanPipeline": ".wan.load",
    "WanImageToVideoPipeline": ".wan.load",
    "WanVACEPipeline": ".wan.load",
    "WanAnimatePipeline": ".wan.load",
}
"""`_class_name` of a checkpoint's model_index.json → the module whose `load` supports it."""

WITH_EXPERTS = frozenset({".wan.load"})
"""Modules whose `load` can keep experts in host memory and swap them (`swap_experts`)."""

WITH_IMAGE_PROMPTS = frozenset({".flux.load", ".sdxl.load"})
"""Modules whose `load` accepts networks for image prompts (`Reading.image_prompts`)."""

WITH_CONTROLS = frozenset({".flux.load", ".sdxl.load"})
"""Modules whose `load` accepts ControlNets (`Reading.controls`)."""

WITH_REFINERS = frozenset({".sdxl.load"})
"""Modules whose `load` accepts a checkpoint for the last steps (`Reading.refiner`)."""

WITH_LATENT_UPSAMPLERS = frozenset({".ltx.load"})
"""Modules whose `load` accepts a network that enlarges latents (`Reading.latent_upsampler`)."""

WITH_TOKEN_BUCKETS = frozenset({".flux.load", ".wan.load"})
"""Modules whose `load` accepts a fraction of work for padding tokens (`Reading.token_buckets`)."""

SINGLE_FILES: Mapping[str, tuple[str, ...]] = {
    ".flux.load": ("text_encoder*/*.safetensors", "vae/*.safetensors"),
    ".qwenimage.load": ("text_encoder/*.safetensors", "vae/*.safetensors"),
    ".qwenimage.edit.load": ("text_encoder/*.safetensors", "vae/*.safetensors"),
    ".flux2.load": ("text_encoder/*.safetensors", "vae/*.safetensors"),
    ".sdxl.load": (),
    ".ltx.load": (
        *("text_encoder/*.safetensors", "connectors/*.safetensors", "vae/*.safetensors"),
        *("audio_vae/*.safetensors", "vocoder/*.safetensors", "latent_upsampler/*.safetensors"),
    ),
    ".zimage.load": ("text_encoder/*.safetensors", "vae/*.safetensors"),
    ".wan.load": (
        "text_encoder/*.safetensors",
        "vae/*.safetensors",
        "image_encoder/*.safetensors",
    ),
}
"""Modules whose `load` accepts a single weight `file` → weights that may still come from its base.
"""

DEFAULT_BASE = "stabilityai/stable-diffusion-xl-base-1.0"
"""Hub id of the configs and tokenizers for a single file without a base."""

OTHER_BASES: Mapping[str, str] = {
    "conditioner.embedders.0.model.": "stabilityai/stable-diffusion-xl-refiner-1.0",
}
"""Bases of files that contain a key with this prefix, instead of `DEFAULT_BASE`."""


WITH_PIPELINES = frozenset({".flux.load"})
"""Modules whose `load` accepts another pipeline class than the index's (`Reading.pipeline`)."""


def loader(class_name: str) -> Callable[..., Pipeline]:
    """Return the `load` of the family for a pipeline class. Raises: UnsupportedCheckpoint."""
    return import_module(_module(class_name), __package__).load  # type: ignore[no-any-return]


def _module(class_name: str) -> str:
    if class_name not in FAMILIES:
        raise UnsupportedCheckpoint(
            f"{class_name} is not supported; model_index.json must name "
            f"{' or '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[class_name]


def family(source: str, base: str | None = None) -> str:
    """Return the family's name, from a checkpoint's index alone. Raises: as `load`."""
    file = single_file(source)
    folder = resolve(base or base_of(file), patterns=CONFIGS) if file else resolve(source)
    class_name = read_model_index(folder)["_class_name"]
    return _module(class_name).split(".")[1]


def load(
    name: str,
    source: str,
    dtype: str,
    defaults: Mapping[str, Any],
    swap_experts: bool | None = None,
    base: str | None = None,
    **how: Any,
) -> Pipeline:
    """Load the model `name`.

    The source is a folder in diffusers' layout (local or in an object store), a hub id with an
    optional @revision, or a single safetensors file with the original keys.

    Args:
        base: of a single file: the folder or hub id with its configs and tokenizers. Default: a
            folder next to the file named after its stem, or the file's folder if it has a
            model_index.json, or `DEFAULT_BASE`.
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
        if swap_experts:
            raise CheckpointError(f"{file}: swap_experts is set, but one file has no experts")
        return _load_file(name, file, dtype, defaults, base, how)
    if base is not None:
        raise CheckpointError(f"{source}: no such file; only a single file of weights has a base")
    folder = resolve(source)
    class_name = _class_of(folder, how)
    load_family = loader(class_name)
    if FAMILIES[class_name] in WITH_EXPERTS:
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
    """Load the model of a single file. Raises: as `load`."""
    if file.suffix != ".safetensors":
        raise UnsupportedCheckpoint(
            f"{file}: not a .safetensors file; pickled weights can run code when they are read and "
            "are never opened"
        )
    folder = resolve(base or base_of(file), patterns=CONFIGS)
    class_name = _class_of(folder, how)
    further = SINGLE_FILES.get(FAMILIES.get(class_name, ""))
    if further is None:
        raise UnsupportedCheckpoint(f"{file}: single files of {class_name} are not supported")
    if further:
        folder = resolve(base or base_of(file), patterns=(*CONFIGS, *further))
    try:
        load_family = partial(loader(class_name), file=file, reading=_reading(class_name, how))
        loaded = load_family(name, folder, dtype, defaults)
    except ValueError as error:
        raise CheckpointError(f"{file}, with the configs of {folder}: {error}") from error
    return _with_distinct_fingerprint(loaded, folder, class_name)


def _class_of(folder: Path, how: Mapping[str, Any]) -> str:
    """Return the class of a checkpoint's pipeline.

    Raises: CheckpointError: `pipeline` is set, and this checkpoint does not support it.
    """
    published: str = read_model_index(folder)["_class_name"]
    requested: str | None = how.get("pipeline")
    if requested is None or requested == published:
        return published
    if _module(published) not in WITH_PIPELINES or FAMILIES.get(requested) != FAMILIES[published]:
        served = sorted(name for name, module in FAMILIES.items() if module == FAMILIES[published])
        can_be = " or ".join(served) if FAMILIES[published] in WITH_PIPELINES else published
        raise CheckpointError(f"{folder}: pipeline is {requested}, but it can only be {can_be}")
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
    """Convert options to a `Reading`.

    Raises: CheckpointError: the family does not support an option.
    """
    if how.get("image_prompts") and FAMILIES[class_name] not in WITH_IMAGE_PROMPTS:
        raise CheckpointError(f"image_prompts are set, but {class_name} does not support them")
    if how.get("controls") and FAMILIES[class_name] not in WITH_CONTROLS:
        raise CheckpointError(f"controls are set, but {class_name} does not support them")
    if how.get("refiner") and FAMILIES[class_name] not in WITH_REFINERS:
        raise CheckpointError(f"refiner is set, but {class_name} does not support it")
    if how.get("latent_upsampler") and FAMILIES[class_name] not in WITH_LATENT_UPSAMPLERS:
        raise CheckpointError(f"latent_upsampler is set, but {class_name} does not support it")
    if how.get("token_buckets") and FAMILIES[class_name] not in WITH_TOKEN_BUCKETS:
        raise CheckpointError(f"token_buckets is set, but {class_name} does not support it")
    sources = import_module(".loading.sources", __package__)
    refiner = _place(how["refiner"]) if how.get("refiner") else None
    reading: Reading = sources.Reading(
        **{**how, "refiner": refiner and sources.CheckpointSource(*refiner)}
    )
    return reading


def _place(source: str) -> tuple[Path, Path | None]:
    """Return the folder of an additional checkpoint, and its weight file, if any."""
    if file := single_file(source):
        return resolve(base_of(file), patterns=CONFIGS), file
    return resolve(source), None


def base_of(file: Path) -> str:
    """Return the default source of a single file's configs and tokenizers."""
    for folder in (file.with_suffix(""), file.parent):
        if (folder / "model_index.json").is_file():
            return str(folder)
    keys = import_module(".checkpoint.single_file", __package__).shapes_of(file)
    for sign, base in OTHER_BASES.items():
        if any(key.startswith(sign) for key in keys):
            return base
    return DEFAULT_BASE
