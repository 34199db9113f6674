"""SDXL in one `.safetensors` file with the original keys, which is how fine-tunes are shared.

Such a file holds the weights alone. Configs, scheduler and tokenizers come from a *base*: a folder
in diffusers' layout (its own weights are not read).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.single_file import NetworkFile, shapes_of
from models.sdxl.compatibility import Parts
from models.sdxl.single_file_keys import (
    OPEN_CLIP_RENAMES,
    unet_renames,
)
from models.text.clip import UNPROJECTED_RENAMES
from models.vae.original_keys import vae_renames

PREFIXES: Mapping[str, str] = {
    "unet": "model.diffusion_model.",
    "vae": "first_stage_model.",
    "text_encoder": "conditioner.embedders.0.transformer.",
    "text_encoder_2": "conditioner.embedders.1.model.",
}
"""Component, as its folder in diffusers' layout is called → what its keys begin with."""
REFINER_PREFIXES: Mapping[str, str] = {
    "unet": "model.diffusion_model.",
    "vae": "first_stage_model.",
    "text_encoder_2": "conditioner.embedders.0.model.",
}
"""The same of a refiner, whose only encoder is diffusers' second one."""

CONV_IN = "model.diffusion_model.input_blocks.0.0.weight"
LABELS = "model.diffusion_model.label_emb.0.0.weight"

FOLDER_INSTEAD = "give the folder in diffusers' layout instead"
OTHERS: tuple[tuple[str, str, str], ...] = (
    (
        "lora_",
        "a LoRA, not a checkpoint",
        "merge it into one (in diffusers: load_lora_weights, fuse_lora, save_pretrained)",
    ),
    (
        "double_blocks.",
        "a Flux transformer",
        "say whose it is (models.*.base): a folder or hub id of a Flux in diffusers' layout",
    ),
    ("joint_blocks.", "Stable Diffusion 3", "that family is not served"),
    ("head.modulation", "a Wan transformer", FOLDER_INSTEAD),
    ("cond_stage_model.", "Stable Diffusion 1 or 2", "that family is not served"),
    ("edm_mean", "Playground 2.5, whose latents are scaled by channel", "that is not served"),
    ("edm_vpred.", "CosXL, trained on EDM's continuous noise levels", "that is not served"),
    ("control_model.", "a ControlNet", "it is no checkpoint of its own"),
    ("down_blocks.", "one component with diffusers' names", "give the whole folder that it is of"),
)
"""Kinds of other files by parts of their keys: what such a file is, and what to do with it."""

OTHERWISE_TRAINED = ("edm_mean", "edm_vpred.sigma_max")
"""Marks, beside SDXL's networks, of a training that none of the schedulers here fits."""


def components(file: Path, parts: Parts) -> Mapping[str, NetworkFile]:
    """Return where each network's weights are in the file; keys as in its kind's prefixes.

    Args:
        parts: the configs that the networks are built from; see `unet_config`.

    Raises:
        UnsupportedCheckpoint: the configs are of a refiner, and the file is none, or the reverse.
        CheckpointError: as `check`.
    """
    check(file)
    prefixes = prefixes_of(shapes_of(file))
    if (prefixes is REFINER_PREFIXES) != (parts.clip is None):
        kinds = ("a refiner", "a model with two text encoders")
        theirs, ours = kinds if parts.clip is not None else kinds[::-1]
        raise UnsupportedCheckpoint(
            f"{file}: it is {theirs}, and the configs are of {ours}; give the folder or hub id of "
            f"{theirs} as base (models.*.base)"
        )
    tables = {
        "unet": unet_renames(parts.unet),
        "vae": vae_renames(parts.vae),
        "text_encoder": UNPROJECTED_RENAMES,
        "text_encoder_2": OPEN_CLIP_RENAMES,
    }
    return {
        name: NetworkFile(ComponentFiles(f"{name} in {file.name}", (file,), prefix), tables[name])
        for name, prefix in prefixes.items()
    }


def prefixes_of(keys: Iterable[str]) -> Mapping[str, str]:
    """Return the prefixes of a file's components: the refiner's, or those of a base model."""
    sign = REFINER_PREFIXES["text_encoder_2"]
    return REFINER_PREFIXES if any(key.startswith(sign) for key in keys) else PREFIXES


def unet_config(file: Path, base: Mapping[str, Any]) -> dict[str, Any]:
    """The base's `unet/config.json` with this file's input channels: nine for inpainting."""
    check(file)
    return {**base, "in_channels": shapes_of(file)[CONV_IN][1]}


def scheduler_config(file: Path, base: Mapping[str, Any]) -> dict[str, Any]:
    """The base's `scheduler_config.json` with what the file says of its training.

    Fine-tunes for v-prediction hold an empty array `v_pred`, with zero-terminal SNR also `ztsnr`:
    a convention of the programs that they are made for (ComfyUI's supported_models.py).
    """
    keys, config = shapes_of(file).keys(), dict(base)
    if "v_pred" in keys:
        config |= {"prediction_type": "v_prediction"}
        config |= {"rescale_betas_zero_snr": True} if "ztsnr" in keys else {}
    return config


def detect(file: Path) -> bool:
    """Return whether this is an SDXL in one file. Raises: CheckpointError: it cannot be read."""
    keys = shapes_of(file).keys()
    is_sdxl = {CONV_IN, LABELS} <= keys and not any(_absent(keys))
    return is_sdxl and keys.isdisjoint(OTHERWISE_TRAINED)


def check(file: Path) -> None:
    """Says why the file cannot be served.

    Raises:
        UnsupportedCheckpoint: it is something else, or only a part of an SDXL; says what to do.
        CheckpointError: pickled, damaged or not there.
    """
    if detect(file):
        return
    keys = shapes_of(file).keys()
    for sign, what, advice in OTHERS:
        if any(sign in key for key in keys):
            raise UnsupportedCheckpoint(f"{file}: {what}, not an SDXL checkpoint; {advice}")
    absent = list(_absent(keys))
    if {CONV_IN, LABELS} <= keys:
        raise UnsupportedCheckpoint(
            f"{file}: an SDXL checkpoint without {' and '.join(absent)}; take the whole file, or "
            "a folder in diffusers' layout"
        )
    raise UnsupportedCheckpoint(
        f"{file}: not an SDXL checkpoint with the original keys; {FOLDER_INSTEAD}"
    )


def _absent(keys: Any) -> Iterator[str]:
    """The components of which the file has nothing."""
    for name, prefix in prefixes_of(keys).items():
        if not any(key.startswith(prefix) for key in keys):
            yield f"{name} ({prefix}*)"
