"""ControlNets of Flux: their folders, whether they fit a model, and the work of a step."""

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
from models.flux.network import FluxTransformer
from models.flux.tools import PLAIN, Tool
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
"""Kinds of a union's control images. Source: InstantX, FLUX.1-dev-Controlnet-Union (README)."""
ONCE = ("conditions.", "text_in.", "latents_in.", "hint_in.", "kinds.")
"""Layers that run once for a step, or are little."""
OF_TEXT = ".text."


def controls_of(reading: Reading, config: FluxConfig, tool: Tool) -> Controls:
    """Read the ControlNets of a checkpoint.

    Raises:
        CheckpointError: one cannot be read or served, or does not fit; names it.
        UnsupportedCheckpoint: they are for another kind of checkpoint.
    """
    if reading.controls and tool is not PLAIN:
        raise UnsupportedCheckpoint(
            "controls are set, but ControlNets steer Flux itself, not Fill, Control or Kontext"
        )
    return read_controls(reading, "transformer", lambda path: read_files(config, path))


def read_files(transformer: FluxConfig, path: Path) -> ControlNetFiles:
    """Read the config of a ControlNet.

    Args:
        transformer: that it steers.

    Raises: CheckpointError, ValueError: it cannot be read or served, or does not fit.
    """
    config = FluxControlNetConfig.read(read_config(path, "."), path / "config.json")
    check_fits(config, transformer)
    kinds = None if config.num_mode is None else UnionKinds(config.num_mode, MODES)
    work = share_of(config, transformer)
    return ControlNetFiles(FluxControlNet, config, path, CONTROL_RENAMES, work, kinds)


def check_fits(config: FluxControlNetConfig, transformer: FluxConfig) -> None:
    """Check that what a ControlNet adds is for the transformer. Raises: ValueError: names both."""
    names = ("in_channels", "width", "joint_attention_dim", "pooled_projection_dim")
    pairs = ((name, getattr(config, name), getattr(transformer, name)) for name in names)
    check_fit(*((f"its {name}", a, f"that of the transformer, {name},", b) for name, a, b in pairs))


def share_of(config: FluxControlNetConfig, transformer: FluxConfig) -> float:
    """Return the work of a step of a ControlNet over that of the transformer's."""
    control = _work(abstract_module(FluxControlNet, config))
    return control / _work(abstract_module(FluxTransformer, transformer))


def _work(network: nnx.Module) -> float:
    """Return the products of a step for each token of the image, text aside."""
    return sum(
        float(leaf.size)
        for path, leaf in flat_parameters(network).items()
        if path.endswith("kernel") and not path.startswith(ONCE) and OF_TEXT not in path
    )
