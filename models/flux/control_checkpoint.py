"""Loads ControlNets of Flux, checks that they match a model, and computes their step cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.tensor import Tensor
from models.control.checkpoint import ControlNetFiles, Controls, UnionKinds, read_controls
from models.flow.joint_control import (
    check_fits,
    count_of_blocks,
    read_control_config,
    read_control_file,
    share_of,
)
from models.flow.joint_names import BLOCKS, SINGLE_BLOCKS
from models.flux.config import FluxConfig
from models.flux.control_config import NAME, FluxControlNetConfig
from models.flux.controlnet import FluxControlNet
from models.flux.key_mapping import CONTROL_RENAMES
from models.flux.kinds import PLAIN, CheckpointKind
from models.flux.network import FluxTransformer
from models.loading.abstract import abstract_module
from models.loading.sources import Reading

MODES: Mapping[str, int] = {
    "canny": 0,
    "tile": 1,
    "depth": 2,
    "blur": 3,
    "pose": 4,
    "gray": 5,
    "lq": 6,
}
"""Control types of a union. Source: InstantX, FLUX.1-dev-Controlnet-Union (README)."""


def controls_of(reading: Reading, config: FluxConfig, kind: CheckpointKind) -> Controls:
    """Read the ControlNets of a Flux checkpoint.

    Raises:
        CheckpointError: a ControlNet cannot be read, is not supported or does not match; names it.
        UnsupportedCheckpoint: the model is of a kind without ControlNets.
    """
    if reading.controls and kind is not PLAIN:
        raise UnsupportedCheckpoint(
            "controls are set, but ControlNets steer Flux itself, not Fill, Control or Kontext"
        )
    return read_controls(reading, "transformer", lambda path: read_files(config, path))


def read_files(transformer: FluxConfig, path: Path) -> ControlNetFiles:
    """Read a ControlNet's config, or infer a file's, and locate its arrays.

    Args:
        transformer: config of the controlled transformer.

    Raises: CheckpointError, ValueError: the ControlNet cannot be read, is not supported or does not
    match.
    """
    place: Path | ComponentFiles = path
    if path.is_file():
        place = ComponentFiles(f"ControlNet in {path.name}", (path,))
        config = read_control_file(FluxControlNetConfig, place, "Flux", transformer, _inferred)
    else:
        config = read_control_config(FluxControlNetConfig, path, NAME, "Flux")
    names = ("in_channels", "width", "joint_attention_dim", "pooled_projection_dim")
    check_fits(config, transformer, *names)
    kinds = None if config.num_mode is None else UnionKinds(config.num_mode, MODES)
    work = share_of(
        abstract_module(FluxControlNet, config), abstract_module(FluxTransformer, transformer)
    )
    return ControlNetFiles(FluxControlNet, config, place, CONTROL_RENAMES, work, kinds)


def _inferred(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of a file's config in which a ControlNet differs from the transformer."""
    modes = tensors.get("controlnet_mode_embedder.weight")
    return {
        "num_layers": count_of_blocks(tensors, BLOCKS),
        "num_single_layers": count_of_blocks(tensors, SINGLE_BLOCKS),
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in tensors,
        "num_mode": modes and modes.shape[0],
    }
