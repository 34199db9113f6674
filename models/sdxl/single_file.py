"""Reads SDXL from one `.safetensors` file with the original keys, the usual format of fine-tunes.

The file contains weights only. Configs, scheduler and tokenizers come from a *base*: a folder in
diffusers' layout. Of its weights, only an autoencoder that the file lacks is read.
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
"""Component (its folder in diffusers' layout) → prefix of its keys."""
REFINER_PREFIXES: Mapping[str, str] = {
    "unet": "model.diffusion_model.",
    "vae": "first_stage_model.",
    "text_encoder_2": "conditioner.embedders.0.model.",
}
"""Prefixes of a refiner's components; its only text encoder is diffusers' second."""

OPTIONAL = "vae"
"""Component that a file may lack; it is then the base's."""
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
        "set its base (models.*.base): a folder or hub id of a Flux in diffusers' layout",
    ),
    ("joint_blocks.", "Stable Diffusion 3", "that family is not supported"),
    ("head.modulation", "a Wan transformer", FOLDER_INSTEAD),
    ("cond_stage_model.", "Stable Diffusion 1 or 2", "that family is not supported"),
    ("edm_mean", "Playground 2.5, whose latents are scaled by channel", "that is not supported"),
    ("edm_vpred.", "CosXL, trained on EDM's continuous noise levels", "that is not supported"),
    ("control_model.", "a ControlNet", "a ControlNet is not a complete checkpoint"),
    (
        "down_blocks.",
        "one component with diffusers' names",
        "give the complete folder that it belongs to",
    ),
)
"""Unsupported files: substring of a key, what the file is, and what to do with it."""

UNSUPPORTED_SCHEDULE_KEYS = ("edm_mean", "edm_vpred.sigma_max")
"""Keys that mark SDXL fine-tunes for noise schedules without a supported scheduler."""


def components(file: Path, parts: Parts) -> Mapping[str, NetworkFile]:
    """Return the file, prefix and renames of each network in a file, which may lack `OPTIONAL`.

    Args:
        parts: configs of the networks; see `unet_config`.

    Raises:
        UnsupportedCheckpoint: configs of a refiner for another file, or the reverse.
        CheckpointError: as `check`.
    """
    check(file)
    keys = shapes_of(file)
    prefixes = prefixes_of(keys)
    if (prefixes is REFINER_PREFIXES) != (parts.clip is None):
        kinds = ("a refiner", "a model with two text encoders")
        actual, given = kinds if parts.clip is not None else kinds[::-1]
        raise UnsupportedCheckpoint(
            f"{file}: it is {actual}, and the configs are of {given}; give the folder or hub id of "
            f"{actual} as base (models.*.base)"
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
        if name != OPTIONAL or any(key.startswith(prefix) for key in keys)
    }


def absent(file: Path) -> tuple[str, ...]:
    """Return the components that a file lacks and the base provides. Raises: as `check`."""
    keys = shapes_of(file)
    has_vae = any(key.startswith(PREFIXES[OPTIONAL]) for key in keys)
    return () if has_vae else (OPTIONAL,)


def prefixes_of(keys: Iterable[str]) -> Mapping[str, str]:
    """Return the prefixes of a file's components: a refiner's, or a base model's."""
    marker = REFINER_PREFIXES["text_encoder_2"]
    return REFINER_PREFIXES if any(key.startswith(marker) for key in keys) else PREFIXES


def unet_config(file: Path, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base's `unet/config.json` with the file's input channels (nine for inpainting)."""
    check(file)
    return {**base, "in_channels": shapes_of(file)[CONV_IN][1]}


def scheduler_config(file: Path, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base's `scheduler_config.json` adjusted to the file's training.

    v-prediction fine-tunes contain an empty array `v_pred`, and `ztsnr` for zero-terminal SNR. This
    is a convention of ComfyUI (supported_models.py).
    """
    keys, config = shapes_of(file).keys(), dict(base)
    if "v_pred" in keys:
        config |= {"prediction_type": "v_prediction"}
        config |= {"rescale_betas_zero_snr": True} if "ztsnr" in keys else {}
    return config


def detect(file: Path) -> bool:
    """Return whether the file is an SDXL with all needed networks.

    Raises: CheckpointError: it cannot be read.
    """
    keys = shapes_of(file).keys()
    is_sdxl = {CONV_IN, LABELS} <= keys and not any(_absent(keys))
    return is_sdxl and keys.isdisjoint(UNSUPPORTED_SCHEDULE_KEYS)


def check(file: Path) -> None:
    """Verify that the file is a supported SDXL.

    Raises:
        UnsupportedCheckpoint: something else, or a part of an SDXL; tells what to do.
        CheckpointError: the file is pickled, damaged or missing.
    """
    if detect(file):
        return
    keys = shapes_of(file).keys()
    for marker, kind, advice in OTHERS:
        if any(marker in key for key in keys):
            raise UnsupportedCheckpoint(f"{file}: {kind}, not an SDXL checkpoint; {advice}")
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
    """Yield the needed components that are missing from the file."""
    for name, prefix in prefixes_of(keys).items():
        if name != OPTIONAL and not any(key.startswith(prefix) for key in keys):
            yield f"{name} ({prefix}*)"
