"""Loads ControlNets of SDXL from folders or files, and checks that they match a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.checkpoint.folder import read_config
from models.checkpoint.safetensors import ComponentFiles
from models.control.checkpoint import ControlNetFiles, UnionKinds
from models.sdxl.compatibility import Parts
from models.sdxl.config import UNetConfig
from models.sdxl.control_config import ControlNetConfig
from models.sdxl.control_file import read_file
from models.sdxl.control_work import share_of
from models.sdxl.controlnet import ControlNet
from models.sdxl.key_mapping import CONTROL_RENAMES

MODES: Mapping[str, int] = {
    "openpose": 0,
    "depth": 1,
    **dict.fromkeys(("hed", "pidi", "scribble", "ted"), 2),
    **dict.fromkeys(("canny", "lineart", "anime_lineart", "mlsd"), 3),
    "normal": 4,
    "segment": 5,
    "tile": 6,
    "repaint": 7,
}
"""Control types of a union, by its authors' names. Source: xinsir6, ControlNetPlus."""


def read_files(parts: Parts, base: Mapping[str, Any], path: Path) -> ControlNetFiles:
    """Read a ControlNet's config and locate its files.

    Args:
        parts: configs of the controlled model.
        base: UNet config as stored in the file.

    Raises: CheckpointError, ValueError: the ControlNet cannot be read, is not supported or does not
    match.
    """
    place: Path | ComponentFiles
    if path.is_file():
        config, place, renames = read_file(path, base)
    else:
        config = ControlNetConfig.from_dict(read_config(path, "."), str(path / "config.json"))
        place, renames = path, CONTROL_RENAMES
    check_fit(config, parts)
    kinds = None
    if config.union is not None:
        kinds = UnionKinds(config.union.num_control_type, MODES, is_multi_image=True)
    return ControlNetFiles(ControlNet, config, place, renames, share_of(config, parts.unet), kinds)


def check_fit(config: ControlNetConfig, parts: Parts) -> None:
    """Check that a ControlNet's skip states match the UNet's.

    Raises: ValueError: names both values.
    """
    trunk, unet = config.trunk, parts.unet
    pairs: Sequence[tuple[str, Any, Any]] = (
        ("block_out_channels", trunk.block_out_channels, unet.block_out_channels),
        ("layers_per_block", _blocks(trunk), _blocks(unet)),
        ("in_channels", trunk.in_channels, unet.out_channels),
        ("addition_time_embed_dim", trunk.addition_time_embed_dim, unet.addition_time_embed_dim),
        (
            "projection_class_embeddings_input_dim",
            trunk.projection_class_embeddings_input_dim,
            unet.projection_class_embeddings_input_dim,
        ),
        ("cross_attention_dim", trunk.text_features, unet.projected_text_features),
    )
    for name, actual, expected in pairs:
        if actual != expected and not (name == "cross_attention_dim" and not _attends(trunk)):
            raise ValueError(
                f"its {name} is {actual}, and that of the UNet {expected}: it is for another model"
            )
    if config.downsampling != parts.vae.downsampling:
        raise ValueError(
            f"it divides the sides of its images by {config.downsampling}, and the VAE by "
            f"{parts.vae.downsampling}: it is for another model"
        )


def _blocks(config: UNetConfig) -> tuple[int, ...]:
    return tuple(level.residual_blocks for level in config.down_levels)


def _attends(config: UNetConfig) -> bool:
    return any(level.depths for level in (*config.down_levels, config.mid_level))
