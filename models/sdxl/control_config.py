"""ControlNet config (`config.json`): validation; a union's config also has control types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from models.checkpoint.config_fields import arguments, frozen
from models.sdxl.config import UNetConfig

UNION_TYPES = "num_control_type"
"""Key that identifies a union's config; published configs name the class ControlNetModel."""
UNION_CLASS = "ControlNetUnionModel"
UNION_EMBEDDING = (48, 96, 192, 384)
UP_BLOCKS: Mapping[str, str] = {
    "DownBlock2D": "UpBlock2D",
    "CrossAttnDownBlock2D": "CrossAttnUpBlock2D",
}


@dataclass(frozen=True)
class UnionConfig:
    """Sizes of the control-type embedding in a union ControlNet."""

    num_control_type: int = 6
    num_trans_channel: int = 320
    num_trans_head: int = 8
    num_trans_layer: int = 1
    num_proj_channel: int = 320


@dataclass(frozen=True)
class ControlNetConfig:
    """Fields of diffusers' ControlNetModel and ControlNetUnionModel, with their defaults.

    Raises:
        ValueError: a value that this network does not support; names the field.
    """

    trunk: UNetConfig
    """Config of the UNet with the same down path."""
    conditioning_channels: int = 3
    conditioning_embedding_out_channels: tuple[int, ...] = (16, 32, 96, 256)
    controlnet_conditioning_channel_order: str = "rgb"
    global_pool_conditions: bool = False
    union: UnionConfig | None = None

    def __post_init__(self) -> None:
        _check_image(self)
        if self.trunk.encoder_hid_dim is not None:
            raise ValueError("encoder_hid_dim: diffusers' ControlNets do not read it; not served")
        if self.union is not None:
            _check_union(self.union, self.trunk)

    @property
    def downsampling(self) -> int:
        """Ratio of a control image's side to the latents' side."""
        return int(2 ** (len(self.conditioning_embedding_out_channels) - 1))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], file: str = "config.json") -> ControlNetConfig:
        """Parse the config of an SDXL ControlNet.

        Args:
            file: file name for error messages.

        Raises: ValueError: an unknown key or an invalid value.
        """
        is_union = UNION_TYPES in config or config.get("_class_name") == UNION_CLASS
        control, union = _part(cls, config), _part(UnionConfig, config)
        if is_union and config.get("_class_name") == UNION_CLASS:
            control = {"conditioning_embedding_out_channels": UNION_EMBEDDING, **control}
        rest = {name: value for name, value in config.items() if name not in {*control, *union}}
        down = config.get("down_block_types", UNetConfig.down_block_types)
        rest["up_block_types"] = tuple(UP_BLOCKS.get(kind, kind) for kind in reversed(down))
        trunk = UNetConfig(**arguments(UNetConfig, rest, file))
        return cls(trunk=trunk, union=UnionConfig(**union) if is_union else None, **control)


def _part(kind: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a ControlNet's config that are fields of this dataclass."""
    names = {field.name for field in fields(kind)} - {"trunk", "union"}
    return {name: frozen(value) for name, value in config.items() if name in names}


def _check_image(config: ControlNetConfig) -> None:
    if config.conditioning_channels != 3:
        raise ValueError(
            f"conditioning_channels {config.conditioning_channels} is not served: images have 3"
        )
    if config.controlnet_conditioning_channel_order not in ("rgb", "bgr"):
        order = config.controlnet_conditioning_channel_order
        raise ValueError(f"controlnet_conditioning_channel_order: {order!r} is not rgb or bgr")
    if config.global_pool_conditions:
        raise ValueError(
            "global_pool_conditions: ControlNets with pooled residuals are not supported"
        )


def _check_union(union: UnionConfig, trunk: UNetConfig) -> None:
    first = trunk.block_out_channels[0]
    for name in ("num_trans_channel", "num_proj_channel"):
        if (value := getattr(union, name)) != first:
            raise ValueError(f"{name} {value} must be block_out_channels' first, {first}")
    if union.num_trans_channel % union.num_trans_head:
        raise ValueError(
            f"num_trans_channel {union.num_trans_channel} must be a multiple of num_trans_head "
            f"{union.num_trans_head}"
        )
    if trunk.addition_time_embed_dim is None:
        raise ValueError("addition_time_embed_dim is needed to embed the control types")
