"""Reads SDXL from one `.safetensors` file with the original keys, the usual format of fine-tunes.

The file contains weights only. Configs, scheduler and tokenizers come from a *base*: a folder in
diffusers' layout. Of its weights, only networks that the file lacks are read: the autoencoder of
some files, and also the text encoders of ComfyUI's and of GGUF files, which are a UNet alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.single_file import NetworkFile, shapes_of
from models.sdxl.compatibility import Parts
from models.sdxl.key_mapping import RENAMES
from models.sdxl.single_file_keys import (
    OPEN_CLIP_RENAMES,
    unet_renames,
)
from models.text.clip import UNPROJECTED_RENAMES
from models.vae.original_keys import vae_renames

PREFIXES: Mapping[str, str] = {
    "vae": "first_stage_model.",
    "text_encoder": "conditioner.embedders.0.transformer.",
    "text_encoder_2": "conditioner.embedders.1.model.",
}
"""Component (its folder in diffusers' layout) → prefix of its keys. A file may lack all of them;
they are then the base's."""
REFINER_PREFIXES: Mapping[str, str] = {
    "vae": "first_stage_model.",
    "text_encoder_2": "conditioner.embedders.0.model.",
}
"""Prefixes of a refiner's components; its only text encoder is diffusers' second."""

ENCODERS = "conditioner.embedders."
"""First part of the keys of text encoders."""


class UNetKeys(NamedTuple):
    """Keys of a UNet's first and last layers, after a prefix, which no other network has."""

    conv_in: str
    labels: str
    conv_out: str


ORIGINAL = UNetKeys("input_blocks.0.0.weight", "label_emb.0.0.weight", "out.2.weight")
DIFFUSERS = UNetKeys("conv_in.weight", "add_embedding.linear_1.weight", "conv_out.weight")
"""Keys with diffusers' names, as in files of SDXL-Lightning's UNet."""
UNET_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "unet.", "")
"""Prefixes of a UNet's keys, in files of ComfyUI and others."""

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
    """Return the file, prefix and renames of each network in a file; it has at least the UNet.

    Args:
        parts: configs of the networks; see `unet_config`.

    Raises:
        UnsupportedCheckpoint: configs of a refiner for another file, or the reverse.
        CheckpointError: as `check`.
    """
    unet_prefix, names = check(file)
    keys = shapes_of(file)
    prefixes = prefixes_of(keys)
    has_encoders = any(key.startswith(ENCODERS) for key in keys)
    if has_encoders and (prefixes is REFINER_PREFIXES) != (parts.clip is None):
        kinds = ("a refiner", "a model with two text encoders")
        actual, given = kinds if parts.clip is not None else kinds[::-1]
        raise UnsupportedCheckpoint(
            f"{file}: it is {actual}, and the configs are of {given}; give the folder or hub id of "
            f"{actual} as base (models.*.base)"
        )
    tables = {
        "unet": unet_renames(parts.unet) if names is ORIGINAL else RENAMES,
        "vae": vae_renames(parts.vae),
        "text_encoder": UNPROJECTED_RENAMES,
        "text_encoder_2": OPEN_CLIP_RENAMES,
    }
    return {
        name: NetworkFile(ComponentFiles(f"{name} in {file.name}", (file,), prefix), tables[name])
        for name, prefix in {"unet": unet_prefix, **prefixes}.items()
        if name == "unet" or any(key.startswith(prefix) for key in keys)
    }


def absent(file: Path) -> tuple[str, ...]:
    """Return the components that a file lacks and the base provides. Raises: as `check`."""
    keys = shapes_of(file)
    prefixes = prefixes_of(keys).items()
    return tuple(name for name, of in prefixes if not any(key.startswith(of) for key in keys))


def prefixes_of(keys: Iterable[str]) -> Mapping[str, str]:
    """Return the key prefixes of a file's components besides the UNet: a refiner's, or a base's."""
    marker = REFINER_PREFIXES["text_encoder_2"]
    return REFINER_PREFIXES if any(key.startswith(marker) for key in keys) else PREFIXES


def unet_config(file: Path, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base's `unet/config.json` with the file's input channels (nine for inpainting)."""
    prefix, names = check(file)
    return {**base, "in_channels": shapes_of(file)[prefix + names.conv_in][1]}


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


def find_unet(keys: Collection[str]) -> tuple[str, UNetKeys] | None:
    """Return the prefix and names of a supported SDXL's UNet; None: a file without one."""
    if not {*UNSUPPORTED_SCHEDULE_KEYS}.isdisjoint(keys):
        return None
    pairs = ((prefix, names) for prefix in UNET_PREFIXES for names in (ORIGINAL, DIFFUSERS))
    return next((pair for pair in pairs if all(pair[0] + name in keys for name in pair[1])), None)


def check(file: Path) -> tuple[str, UNetKeys]:
    """Return the key prefix and naming scheme of a file's UNet.

    Raises:
        UnsupportedCheckpoint: no SDXL, or a part of one without a UNet; tells what to do.
        CheckpointError: the file is pickled, damaged or missing.
    """
    keys = shapes_of(file).keys()
    if unet := find_unet(keys):
        return unet
    for marker, kind, advice in OTHERS:
        if any(marker in key for key in keys):
            raise UnsupportedCheckpoint(f"{file}: {kind}, not an SDXL checkpoint; {advice}")
    raise UnsupportedCheckpoint(f"{file}: not an SDXL checkpoint: no UNet in it; {FOLDER_INSTEAD}")
