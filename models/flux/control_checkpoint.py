"""Loads ControlNets of Flux, checks that they match a model, and computes their step cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flax import nnx

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import UnsupportedCheckpoint, read_config
from models.control.checkpoint import ControlNetFiles, Controls, UnionKinds, read_controls
from models.flux.config import FluxConfig
from models.flux.control_config import FluxControlNetConfig
from models.flux.controlnet import FluxControlNet
from models.flux.key_mapping import CONTROL_RENAMES
from models.flux.kinds import PLAIN, CheckpointKind
from models.flux.network import FluxTransformer
from models.loading.abstract import abstract_module
from models.loading.sources import Reading
from models.weights.loader import flat_parameters

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
UNCOUNTED = ("conditions.", "text_in.", "latents_in.", "hint_in.", "kinds.")
"""Layers excluded from the cost: they run once per step, or are small."""
OF_TEXT = ".text."


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
    config = FluxControlNetConfig.read(read_config(path, "."), path / "config.json")
    check_fits(config, transformer)
    kinds = None if config.num_mode is None else UnionKinds(config.num_mode, MODES)
    work = share_of(config, transformer)
    return ControlNetFiles(FluxControlNet, config, path, CONTROL_RENAMES, work, kinds)


def check_fits(config: FluxControlNetConfig, transformer: FluxConfig) -> None:
    """Check that a ControlNet's sizes match the transformer. Raises: ValueError: names both."""
    names = ("in_channels", "width", "joint_attention_dim", "pooled_projection_dim")
    pairs = ((name, getattr(config, name), getattr(transformer, name)) for name in names)
    check_fit(*((f"its {name}", a, f"that of the transformer, {name},", b) for name, a, b in pairs))


def share_of(config: FluxControlNetConfig, transformer: FluxConfig) -> float:
    """Return the cost of a ControlNet step divided by that of a transformer step."""
    control = _work(abstract_module(FluxControlNet, config))
    return control / _work(abstract_module(FluxTransformer, transformer))


def _work(network: nnx.Module) -> float:
    """Return a network's multiplications in one step per image token, excluding text."""
    return sum(
        float(leaf.size)
        for path, leaf in flat_parameters(network).items()
        if path.endswith("kernel") and not path.startswith(UNCOUNTED) and OF_TEXT not in path
    )
