"""Loads ControlNets of Z-Image from folders or files, and checks that they match a model."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.safetensors import ComponentFiles, open_tensors
from models.control.checkpoint import ControlNetFiles, Controls, read_controls
from models.flow.joint_control import check_fits, read_control_config
from models.loading.sources import Reading
from models.vae.patches import PATCH
from models.zimage.config import OWN_REFINER, SAME_LAYERS, ZImageConfig, ZImageControlNetConfig
from models.zimage.controlnet import ZImageControlNet
from models.zimage.key_mapping import CONTROL_RENAMES, WITHOUT_REFINER

NAME = "ZImageControlNetModel"
"""Class name of Z-Image's ControlNets in diffusers."""
HINTS_IN = ("control_all_x_embedder.2-1.weight", "control_x_embedder.weight")
"""Keys of the layer that reads the control image, published and ComfyUI's."""
REFINER_OUT = "control_noise_refiner.0.after_proj.weight"


def controls_of(reading: Reading, config: ZImageConfig) -> Controls:
    """Read the ControlNets of a Z-Image checkpoint.

    Raises: CheckpointError: a ControlNet cannot be read, is not supported or does not match; names
    it.
    """
    return read_controls(reading, "transformer", partial(read_files, config))


def read_files(transformer: ZImageConfig, path: Path) -> ControlNetFiles:
    """Read a ControlNet's config and locate its arrays.

    Args:
        transformer: config of the controlled transformer.

    Raises: CheckpointError, ValueError: the ControlNet cannot be read, is not supported or does not
    match.
    """
    place: Path | ComponentFiles = path
    if path.is_file():
        place = ComponentFiles(f"ControlNet in {path.name}", (path,))
        config = ZImageControlNetConfig(**_fields(place, transformer))
    else:
        config = read_control_config(ZImageControlNetConfig, path, NAME, "Z-Image")
    _check(config, transformer)
    is_2_0 = config.add_control_noise_refiner == SAME_LAYERS
    renames = WITHOUT_REFINER if is_2_0 else CONTROL_RENAMES
    return ControlNetFiles(ZImageControlNet, config, place, renames, share_of(config, transformer))


def share_of(config: ZImageControlNetConfig, transformer: ZImageConfig) -> float:
    """Return the cost of a ControlNet step divided by that of a transformer step.

    In units of a block's 4 w² + 3 w · inner products per image token; an output layer has w².
    """
    layers, refiner = len(config.control_layers_places), config.refiner_layers
    output = 1 / (4 + 3 * config.inner / config.dim)
    work = transformer.n_refiner_layers + refiner + layers + (layers + 1) * output
    if config.add_control_noise_refiner == OWN_REFINER:
        work += (refiner + 1) * output
    if config.add_control_noise_refiner == SAME_LAYERS:
        work += layers + (layers + 1) * output
    return work / (transformer.n_layers + transformer.n_refiner_layers)


def _check(config: ZImageControlNetConfig, transformer: ZImageConfig) -> None:
    """Check that a ControlNet matches the transformer. Raises: ValueError: names the field."""
    check_fits(config, transformer, "dim", "n_heads")
    if config.control_in_dim < transformer.in_channels:
        raise ValueError(
            f"its control_in_dim is {config.control_in_dim}, and the latents have "
            f"{transformer.in_channels} channels: it is for another model"
        )
    outputs = config.refiner_layers or len(config.control_layers_places)
    refiner = config.refiner_places, min(outputs, transformer.n_refiner_layers)
    for name, places, layers in (
        ("control_layers_places", config.control_layers_places, transformer.n_layers),
        ("control_refiner_layers_places", *refiner),
    ):
        if any(a >= b for a, b in pairwise((-1, *places, layers))):
            raise ValueError(
                f"its {name} {places} must be ascending numbers of layers below {layers}: it is "
                "for another model"
            )


def _fields(file: ComponentFiles, transformer: ZImageConfig) -> dict[str, Any]:
    """Infer the config of a published file, which has none, from its arrays.

    Versions 2.0 and 2.1 have equal shapes. The refiner of 2.0 was not trained, so that its output
    layers are zero. Source: ComfyUI (comfy_extras/nodes_model_patch.py).

    Raises: CheckpointError: the file is no ControlNet of Z-Image, or cannot be read.
    """
    with ExitStack() as files:
        tensors = open_tensors(file, files)
        hint_in = next((tensors[key] for key in HINTS_IN if key in tensors), None)
        if hint_in is None:
            raise UnsupportedCheckpoint(
                f"{file.files[0]}: no ControlNet of Z-Image; give one's folder, hub id or file"
            )
        width, patch = hint_in.shape
        layers, refiner = (
            len({match[1] for key in tensors if (match := re.match(rf"{stack}\.(\d+)\.", key))})
            for stack in ("control_layers", "control_noise_refiner")
        )
        kind = None
        if out := tensors.get(REFINER_OUT):
            kind = OWN_REFINER if out.read(0, out.shape[0]).any() else SAME_LAYERS
    every = max(transformer.n_layers // max(layers, 1), 1)
    return {
        "control_layers_places": tuple(range(0, layers * every, every)),
        "control_refiner_layers_places": tuple(range(transformer.n_refiner_layers)),
        "control_in_dim": patch // PATCH**2,
        "add_control_noise_refiner": kind,
        "dim": width,
        "n_refiner_layers": refiner,
        **{
            name: getattr(transformer, name)
            for name in ("n_heads", "n_kv_heads", "norm_eps", "qk_norm")
        },
    }
