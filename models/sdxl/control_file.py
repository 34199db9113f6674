"""Reads a ControlNet from one `.safetensors` file without a config, as shared for ComfyUI.

Keys are those of diffusers or the original ones of `cldm`, with or without a prefix. The structure
is inferred from array shapes; the remaining fields are copied from the UNet's config.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.folder import UnsupportedCheckpoint
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.single_file import shapes_of
from models.checkpoint.tensor import Shape
from models.sdxl.control_config import ControlNetConfig
from models.sdxl.key_mapping import CONTROL_RENAMES
from models.sdxl.single_file_keys import unet_renames

Shapes = Mapping[str, Shape]
PREFIX = "control_model."
SHARED = (
    *("act_fn", "addition_embed_type", "addition_time_embed_dim", "attention_head_dim"),
    *("block_out_channels", "cross_attention_dim", "down_block_types", "downsample_padding"),
    *("flip_sin_to_cos", "freq_shift", "layers_per_block", "mid_block_scale_factor"),
    *("mid_block_type", "norm_eps", "norm_num_groups", "projection_class_embeddings_input_dim"),
    *("resnet_time_scale_shift", "transformer_layers_per_block", "use_linear_projection"),
)
"""Config fields that a ControlNet copies from its UNet."""


def read_file(
    file: Path, base: Mapping[str, Any]
) -> tuple[ControlNetConfig, ComponentFiles, Renames]:
    """Return a ControlNet's config, its array locations, and the renames of its keys.

    Args:
        base: config of the UNet that it controls.

    Raises:
        UnsupportedCheckpoint: the file is not a ControlNet.
        CheckpointError: the file is pickled, damaged or missing.
        ValueError: the network is not supported.
    """
    keys = shapes_of(file)
    prefix = PREFIX if any(key.startswith(PREFIX) for key in keys) else ""
    shapes = {key.removeprefix(prefix): shape for key, shape in keys.items()}
    fields = {name: base[name] for name in SHARED if name in base}
    fields["in_channels"] = base.get("out_channels", 4)
    files = ComponentFiles(f"ControlNet in {file.name}", (file,), prefix)
    if "controlnet_cond_embedding.conv_in.weight" in shapes:
        fields |= _structure(shapes)
        return ControlNetConfig.from_dict(fields, str(file)), files, CONTROL_RENAMES
    if "input_hint_block.0.weight" in shapes:
        fields["conditioning_embedding_out_channels"] = _hint_widths(shapes, 4)
        config = ControlNetConfig.from_dict(fields, str(file))
        return config, files, original_renames(config)
    raise UnsupportedCheckpoint(f"{file}: no ControlNet; give one's folder, hub id or file")


def original_renames(config: ControlNetConfig) -> Renames:
    """Map original keys to parameter paths. Source: Zhang, ControlNet (cldm/cldm.py)."""
    last = 2 * (2 * len(config.conditioning_embedding_out_channels) - 1)
    places = {0: "image_encoder.conv_in", last: "image_encoder.conv_out"}
    places |= {2 * (block + 1): f"image_encoder.blocks.{block}" for block in range(last // 2 - 1)}
    return (
        *(
            (rf"input_hint_block\.{number}\.{source}", f"{path}.{target}")
            for number, path in places.items()
            for source, target in (("weight", "kernel"), ("bias", "bias"))
        ),
        (r"zero_convs\.(\d+)\.0\.weight", r"out.\1.kernel"),
        (r"zero_convs\.(\d+)\.0\.bias", r"out.\1.bias"),
        (r"middle_block_out\.0\.weight", "mid_out.kernel"),
        (r"middle_block_out\.0\.bias", "mid_out.bias"),
        *unet_renames(config.trunk),
    )


def _hint_widths(shapes: Shapes, every: int) -> tuple[int, ...]:
    """Return the hint encoder's channels: after its first convolution and each downsampling."""
    numbers = {int(key.split(".")[1]) for key in shapes if key.startswith("input_hint_block.")}
    halving = range(0, max(numbers), every)
    return tuple(shapes[f"input_hint_block.{number}.weight"][0] for number in halving)


def _structure(shapes: Shapes) -> dict[str, Any]:
    """Infer a ControlNet's config from the array shapes under diffusers' keys."""
    levels = _count(shapes, r"down_blocks\.(\d+)\..+")
    depths = [_depth(shapes, f"down_blocks.{level}") for level in range(levels)]
    middle = _depth(shapes, "mid_block")
    embedding = "controlnet_cond_embedding"
    blocks = _count(shapes, rf"{embedding}\.blocks\.(\d+)\.weight")
    narrow = shapes[f"{embedding}.conv_in.weight"][0]
    fields: dict[str, Any] = {
        "down_block_types": [
            "DownBlock2D" if depth is None else "CrossAttnDownBlock2D" for depth in depths
        ],
        "mid_block_type": "UNetMidBlock2D" if middle is None else "UNetMidBlock2DCrossAttn",
        "transformer_layers_per_block": [*(depth or 0 for depth in depths[:-1]), middle or 0],
        "layers_per_block": _count(shapes, r"down_blocks\.0\.resnets\.(\d+)\..+"),
        "block_out_channels": [
            shapes[f"down_blocks.{level}.resnets.0.conv1.weight"][0] for level in range(levels)
        ],
        "conditioning_embedding_out_channels": [
            narrow,
            *(shapes[f"{embedding}.blocks.{block}.weight"][0] for block in range(1, blocks, 2)),
        ],
    }
    if "task_embedding" in shapes:
        kinds, width = shapes["task_embedding"]
        fields |= {"num_control_type": kinds, "num_trans_channel": width, "num_proj_channel": width}
        fields["num_trans_layer"] = _count(shapes, r"transformer_layes\.(\d+)\..+")
    return fields


def _depth(shapes: Shapes, block: str) -> int | None:
    """Return the number of transformer layers of a UNet block; None if it has no attention."""
    if f"{block}.attentions.0.norm.weight" not in shapes:
        return None
    return _count(shapes, rf"{re.escape(block)}\.attentions\.0\.transformer_blocks\.(\d+)\..+")


def _count(keys: Collection[str], expression: str) -> int:
    """Count the distinct numbers that an expression's group matches in a file's keys."""
    matches = (re.fullmatch(expression, key) for key in keys)
    return len({match[1] for match in matches if match})
