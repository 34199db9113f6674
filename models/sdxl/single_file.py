"""SDXL in one `.safetensors` file with the original keys, which is how fine-tunes are shared.

Such a file holds the weights alone. Configs, scheduler and tokenizers come from a *base*: a folder
in diffusers' layout (its own weights are not read).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.folder import PICKLED, CheckpointError, UnsupportedCheckpoint
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles, Shape, open_tensors
from models.sdxl.config import UNetConfig
from models.sdxl.single_file_keys import (
    CLIP_L_RENAMES,
    OPEN_CLIP_RENAMES,
    unet_renames,
    vae_renames,
)
from models.vae.config import VaeConfig

PREFIXES: Mapping[str, str] = {
    "unet": "model.diffusion_model.",
    "vae": "first_stage_model.",
    "text_encoder": "conditioner.embedders.0.transformer.",
    "text_encoder_2": "conditioner.embedders.1.model.",
}
"""Component, as its folder in diffusers' layout is called → what its keys begin with."""

CONV_IN = "model.diffusion_model.input_blocks.0.0.weight"
LABELS = "model.diffusion_model.label_emb.0.0.weight"

FOLDER_INSTEAD = "give the folder in diffusers' layout instead"
OTHERS: tuple[tuple[str, str, str], ...] = (
    (
        "lora_",
        "a LoRA, not a checkpoint",
        "merge it into one (in diffusers: load_lora_weights, fuse_lora, save_pretrained)",
    ),
    ("double_blocks.", "a Flux transformer", FOLDER_INSTEAD),
    ("joint_blocks.", "Stable Diffusion 3", "that family is not served"),
    ("head.modulation", "a Wan transformer", FOLDER_INSTEAD),
    ("cond_stage_model.", "Stable Diffusion 1 or 2", "that family is not served"),
    ("conditioner.embedders.0.model.", "the SDXL refiner", "give SDXL's base model"),
    ("edm_mean", "Playground 2.5, whose latents are scaled by channel", "that is not served"),
    ("edm_vpred.", "CosXL, trained on EDM's continuous noise levels", "that is not served"),
    ("control_model.", "a ControlNet", "it is no checkpoint of its own"),
    ("down_blocks.", "one component with diffusers' names", "give the whole folder that it is of"),
)
"""Kinds of other files by parts of their keys: what such a file is, and what to do with it."""

OTHERWISE_TRAINED = ("edm_mean", "edm_vpred.sigma_max")
"""Marks, beside SDXL's networks, of a training that none of the schedulers here fits."""


class Component(NamedTuple):
    """Arguments of `models.weights.loader.load` beside the module."""

    part: ComponentFiles
    renames: Renames


def components(file: Path, unet: UNetConfig, vae: VaeConfig) -> Mapping[str, Component]:
    """Return where each network's weights are in the file; keys as in `PREFIXES`.

    Args:
        unet, vae: the configs that the networks are built from; see `unet_config`.

    Raises:
        CheckpointError: as `check`.
    """
    check(file)
    tables = {
        "unet": unet_renames(unet),
        "vae": vae_renames(vae),
        "text_encoder": CLIP_L_RENAMES,
        "text_encoder_2": OPEN_CLIP_RENAMES,
    }
    return {
        name: Component(ComponentFiles(f"{name} in {file.name}", (file,), PREFIXES[name]), renames)
        for name, renames in tables.items()
    }


def unet_config(file: Path, base: Mapping[str, Any]) -> dict[str, Any]:
    """The base's `unet/config.json` with this file's input channels: nine for inpainting."""
    check(file)
    return {**base, "in_channels": _shapes(file)[CONV_IN][1]}


def scheduler_config(file: Path, base: Mapping[str, Any]) -> dict[str, Any]:
    """The base's `scheduler_config.json` with what the file says of its training.

    Fine-tunes for v-prediction hold an empty array `v_pred`, with zero-terminal SNR also `ztsnr`:
    a convention of the programs that they are made for (ComfyUI's supported_models.py).
    """
    keys, config = _shapes(file).keys(), dict(base)
    if "v_pred" in keys:
        config |= {"prediction_type": "v_prediction"}
        config |= {"rescale_betas_zero_snr": True} if "ztsnr" in keys else {}
    return config


def detect(file: Path) -> bool:
    """Return whether this is an SDXL in one file. Raises: CheckpointError: it cannot be read."""
    keys = _shapes(file).keys()
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
    keys = _shapes(file).keys()
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
    for name, prefix in PREFIXES.items():
        if not any(key.startswith(prefix) for key in keys):
            yield f"{name} ({prefix}*)"


def _shapes(file: Path) -> dict[str, Shape]:
    if file.suffix in PICKLED:
        raise CheckpointError(
            f"{file}: a pickled checkpoint, which can run code when it is read and is never "
            "opened; convert it to safetensors where you trust it"
        )
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file")
    with ExitStack() as files:
        tensors = open_tensors(ComponentFiles(file.name, (file,)), files)
        return {key: tensor.shape for key, tensor in tensors.items()}
