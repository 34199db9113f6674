"""Loads ControlNets of Flux, checks that they match a model, and computes their step cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.checkpoint.folder import UnsupportedCheckpoint
from models.control.checkpoint import ControlNetFiles, Controls, UnionKinds, read_controls
from models.flow.joint_control import check_fits, read_control_config, share_of
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
    """Read a ControlNet's config and locate its files.

    Args:
        transformer: config of the controlled transformer.

    Raises: CheckpointError, ValueError: the ControlNet cannot be read, is not supported or does not
    match.
    """
    config = read_control_config(FluxControlNetConfig, path, NAME, "Flux")
    names = ("in_channels", "width", "joint_attention_dim", "pooled_projection_dim")
    check_fits(config, transformer, *names)
    kinds = None if config.num_mode is None else UnionKinds(config.num_mode, MODES)
    work = share_of(
        abstract_module(FluxControlNet, config), abstract_module(FluxTransformer, transformer)
    )
    return ControlNetFiles(FluxControlNet, config, path, CONTROL_RENAMES, work, kinds)
