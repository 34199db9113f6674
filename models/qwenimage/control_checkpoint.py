"""Loads ControlNets of Qwen-Image, checks that they match a model, and computes their step cost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.tensor import Tensor
from models.control.checkpoint import ControlNetFiles, Controls, read_controls
from models.flow.joint_control import (
    HINT_IN,
    check_fits,
    count_of_blocks,
    read_control_config,
    read_control_file,
    share_of,
)
from models.flow.joint_names import BLOCKS
from models.loading.abstract import abstract_module
from models.loading.sources import Reading
from models.qwenimage.config import QwenImageConfig, QwenImageControlNetConfig
from models.qwenimage.controlnet import QwenImageControlNet
from models.qwenimage.key_mapping import CONTROL_RENAMES
from models.qwenimage.network import QwenImageTransformer
from models.qwenimage.spec import GENERATION, Kind

NAME = "QwenImageControlNetModel"
"""Class name of Qwen-Image's ControlNets in diffusers."""


def controls_of(reading: Reading, config: QwenImageConfig, kind: Kind) -> Controls:
    """Read the ControlNets of a Qwen-Image checkpoint.

    Raises:
        CheckpointError: a ControlNet cannot be read, is not supported or does not match; names it.
        UnsupportedCheckpoint: the checkpoint is of a kind without ControlNets.
    """
    if reading.controls and kind is not GENERATION:
        raise UnsupportedCheckpoint(
            "controls are set, but ControlNets steer Qwen-Image itself, not Edit; remove them"
        )
    return read_controls(reading, "transformer", partial(read_files, config))


def read_files(transformer: QwenImageConfig, path: Path) -> ControlNetFiles:
    """Read a ControlNet's config, or infer a file's, and locate its arrays.

    Args:
        transformer: config of the controlled transformer.

    Raises: CheckpointError, ValueError: the ControlNet cannot be read, is not supported or does not
    match.
    """
    place: Path | ComponentFiles = path
    if path.is_file():
        place = ComponentFiles(f"ControlNet in {path.name}", (path,))
        kind, more = QwenImageControlNetConfig, partial(_inferred, transformer)
        config = read_control_file(kind, place, "Qwen-Image", transformer, more)
    else:
        config = read_control_config(QwenImageControlNetConfig, path, NAME, "Qwen-Image")
    check_fits(config, transformer, "in_channels", "width", "joint_attention_dim")
    control = abstract_module(QwenImageControlNet, config)
    work = share_of(control, abstract_module(QwenImageTransformer, transformer))
    return ControlNetFiles(QwenImageControlNet, config, place, CONTROL_RENAMES, work)


def _inferred(transformer: QwenImageConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of a file's config in which a ControlNet differs from the transformer."""
    return {
        "num_layers": count_of_blocks(tensors, BLOCKS),
        "extra_condition_channels": tensors[HINT_IN].shape[-1] - transformer.in_channels,
    }
