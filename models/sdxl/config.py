"""UNet config of SDXL (`unet/config.json`): validation, and the resolution levels it defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from models.checkpoint.config_fields import arguments
from models.nn.layers.activations import erf_gelu

Depths = tuple[int, ...]
PerLevel = tuple[Any, ...]

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "mish": jax.nn.mish,
    "gelu": erf_gelu,
    "relu": jax.nn.relu,
}
PLAIN_MID, ATTENTION_MID = "UNetMidBlock2D", "UNetMidBlock2DCrossAttn"

_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "mid_block_type": (ATTENTION_MID, PLAIN_MID, None),
    "act_fn": tuple(ACTIVATIONS),
    "time_embedding_act_fn": (*ACTIVATIONS, None),
    "timestep_post_act": (*ACTIVATIONS, None),
    "resnet_time_scale_shift": ("default", "scale_shift"),
    "downsample_padding": (0, 1),
    "addition_embed_type": ("text_time", None),
    "encoder_hid_dim_type": ("text_proj", None),
    "time_embedding_type": ("positional",),
    "attention_type": ("default",),
    "class_embed_type": (None,),
    "num_class_embeds": (None,),
    "class_embeddings_concat": (False,),
    "dual_cross_attention": (False,),
    "num_attention_heads": (None,),
}
_REASONS: Mapping[str, str] = {
    "addition_embed_type": "other networks than SDXL's have further inputs",
    "encoder_hid_dim_type": "image conditions are not served",
    "attention_type": "boxes (GLIGEN) are not served",
    "class_embed_type": "class labels are not served",
    "num_class_embeds": "class labels are not served",
    "class_embeddings_concat": "class labels are not served",
    "num_attention_heads": "diffusers refuses it too: attention_head_dim counts the heads",
}
_COUNTS = ("in_channels", "out_channels", "norm_num_groups", "conv_in_kernel", "conv_out_kernel")
_OPTIONAL_COUNTS = (
    "addition_time_embed_dim",
    "projection_class_embeddings_input_dim",
    "time_cond_proj_dim",
    "time_embedding_dim",
    "encoder_hid_dim",
)
_BLOCKS: Mapping[str, tuple[str, str]] = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}


class Level(NamedTuple):
    """Blocks of one resolution level: on the down path, in the middle or on the up path."""

    channels: int
    depths: Depths | None
    """Transformer layers after each residual block; None if the level has no attention."""
    residual_blocks: int
    heads: int
    text_features: int
    only_cross_attention: bool


@dataclass(frozen=True)
class UNetConfig:
    """Fields of diffusers' UNet2DConditionModel config, with its defaults (SD 1.5's).

    Fields that may hold one value or one per level are stored as in the file. `down_levels`,
    `mid_level` and `up_levels` expand them.

    Raises:
        ValueError: a value that this network does not support; names the field.
    """

    sample_size: int | tuple[int, ...] | None = None
    """Side of the training images in latents."""
    in_channels: int = 4
    out_channels: int = 4
    center_input_sample: bool = False
    flip_sin_to_cos: bool = True
    """Whether cosines precede sines in the sinusoidal embeddings."""
    freq_shift: int | float = 0
    down_block_types: tuple[str, ...] = (*("CrossAttnDownBlock2D",) * 3, "DownBlock2D")
    mid_block_type: str | None = ATTENTION_MID
    up_block_types: tuple[str, ...] = ("UpBlock2D", *("CrossAttnUpBlock2D",) * 3)
    only_cross_attention: bool | tuple[bool, ...] = False
    """Whether the first attention of a transformer layer attends to the text, not to the image."""
    block_out_channels: tuple[int, ...] = (320, 640, 1280, 1280)
    layers_per_block: int | tuple[int, ...] = 2
    downsample_padding: int = 1
    """Padding of the downsampling convolutions; 0 pads the right and bottom edges only."""
    mid_block_scale_factor: int | float = 1
    """Divisor of the outputs of the middle's residual blocks."""
    dropout: int | float = 0.0
    """Training dropout rate; ignored at inference."""
    act_fn: str = "silu"
    norm_num_groups: int = 32
    norm_eps: int | float = 1e-5
    cross_attention_dim: int | tuple[int, ...] = 1280
    transformer_layers_per_block: int | PerLevel = 1
    """Number of transformer layers per level, or per level and residual block."""
    reverse_transformer_layers_per_block: PerLevel | None = None
    """`transformer_layers_per_block` of the up path, from the lowest level; None reverses the down
    path's."""
    encoder_hid_dim: int | None = None
    """Width of the text features if a linear layer projects them to `cross_attention_dim`."""
    encoder_hid_dim_type: str | None = None
    attention_head_dim: int | PerLevel = 8
    """Number of heads, despite its name: diffusers preserves an old naming mistake."""
    num_attention_heads: None = None
    dual_cross_attention: bool = False
    use_linear_projection: bool = False
    """Whether the file stores matrices, not 1 x 1 convolutions, around the transformers; equivalent
    here."""
    class_embed_type: None = None
    addition_embed_type: str | None = None
    addition_time_embed_dim: int | None = None
    num_class_embeds: None = None
    upcast_attention: bool | None = False
    """Whether softmax runs in float32; always true here."""
    resnet_time_scale_shift: str = "default"
    resnet_skip_time_act: bool = False
    """Used only by unsupported blocks, like `resnet_out_scale_factor`."""
    resnet_out_scale_factor: int | float = 1.0
    time_embedding_type: str = "positional"
    time_embedding_dim: int | None = None
    time_embedding_act_fn: str | None = None
    timestep_post_act: str | None = None
    time_cond_proj_dim: int | None = None
    """Width of the guidance-scale embedding that guidance-distilled networks (LCM) take as an
    input."""
    conv_in_kernel: int = 3
    conv_out_kernel: int = 3
    projection_class_embeddings_input_dim: int | None = None
    """Width of the pooled text and the embedded sizes, concatenated."""
    attention_type: str = "default"
    class_embeddings_concat: bool = False
    mid_block_only_cross_attention: bool | None = None
    """Used only by unsupported blocks, like the next two fields."""
    cross_attention_norm: str | None = None
    addition_embed_type_num_heads: int = 64

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> UNetConfig:
        """Parse `unet/config.json`.

        Raises: ValueError: an unknown key or an invalid value.
        """
        return cls(**arguments(cls, config, "unet/config.json"))

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_counts(self)
        _check_blocks(self)
        _check_conditions(self)
        for level in (*self.down_levels, *self.up_levels, self.mid_level):
            _check_level(self, level)

    @property
    def time_features(self) -> int:
        """Width of the time embedding that every residual block receives."""
        return self.time_embedding_dim or 4 * self.block_out_channels[0]

    @property
    def text_features(self) -> int:
        """Width of the prompt embeddings that the UNet takes."""
        return self.encoder_hid_dim or self.projected_text_features

    @property
    def projected_text_features(self) -> int:
        """Width of the text features at the levels; must be the same at all of them."""
        levels = (*self.down_levels, self.mid_level, *self.up_levels)
        widths = {level.text_features for level in levels if level.depths}
        if len(widths) > 1:
            raise ValueError(f"cross_attention_dim: one text serves all levels, not {widths}")
        return widths.pop() if widths else self.mid_level.text_features

    @property
    def inner_features(self) -> int:
        """Channels that the outermost up block receives from the level below."""
        *_, below, _ = (self.mid_level, *self.up_levels)
        return below.channels

    @property
    def downsampling(self) -> int:
        """Ratio of the latents' side to the lowest level's side."""
        return int(2 ** (len(self.block_out_channels) - 1))

    @property
    def down_levels(self) -> tuple[Level, ...]:
        """Levels of the down path, from the highest resolution to the lowest."""
        return tuple(self._down_level(index) for index in range(len(self.block_out_channels)))

    @property
    def mid_level(self) -> Level:
        """Level of the UNet's middle block."""
        lowest = self.down_levels[-1]
        if self.mid_block_type != ATTENTION_MID:
            return lowest._replace(depths=None, residual_blocks=1)
        depths = _depths("transformer_layers_per_block", self._transformer_layers[-1], 1)
        return lowest._replace(depths=depths, residual_blocks=2)

    @property
    def up_levels(self) -> tuple[Level, ...]:
        """Levels of the up path, from the lowest resolution to the highest."""
        name = "reverse_transformer_layers_per_block"
        down, layers = self.down_levels[::-1], self.reverse_transformer_layers_per_block
        if layers is None:
            name, layers = "transformer_layers_per_block", self._transformer_layers[::-1]
        elif len(layers) != len(down):
            raise ValueError(f"{name}: {len(layers)} values for {len(down)} levels")
        return tuple(
            level._replace(
                residual_blocks=level.residual_blocks + 1,
                depths=_depths(name, entry, level.residual_blocks + 1) if attends else None,
            )
            for level, entry, attends in zip(
                down, layers, _attends(self, "up_block_types"), strict=True
            )
        )

    @property
    def _transformer_layers(self) -> PerLevel:
        return self._by_level("transformer_layers_per_block")

    def _down_level(self, index: int) -> Level:
        count = self._by_level("layers_per_block")[index]
        layers = self._transformer_layers[index]
        attends = _attends(self, "down_block_types")[index]
        return Level(
            channels=self.block_out_channels[index],
            depths=_depths("transformer_layers_per_block", layers, count) if attends else None,
            residual_blocks=count,
            heads=self._by_level("attention_head_dim")[index],
            text_features=self._by_level("cross_attention_dim")[index],
            only_cross_attention=self._by_level("only_cross_attention")[index],
        )

    def _by_level(self, name: str) -> PerLevel:
        value, levels = getattr(self, name), len(self.block_out_channels)
        if not isinstance(value, tuple):
            return (value,) * levels
        if len(value) != levels:
            raise ValueError(f"{name}: {len(value)} values for {levels} levels")
        return value


def _attends(config: UNetConfig, name: str) -> tuple[bool, ...]:
    return tuple(kind == _BLOCKS[name][1] for kind in getattr(config, name))


def _depths(name: str, layers: int | Depths, residual_blocks: int) -> Depths:
    """Return the number of transformer layers after each residual block of a level."""
    depths = layers[:residual_blocks] if isinstance(layers, tuple) else (layers,) * residual_blocks
    if len(depths) < residual_blocks or any(
        type(depth) is not int or depth < 0 for depth in depths
    ):
        raise ValueError(
            f"{name}: {layers!r} should be a whole number, or one for each of the "
            f"{residual_blocks} residual blocks"
        )
    return depths


def _check_choices(config: UNetConfig) -> None:
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            reason = f" ({_REASONS[name]})" if name in _REASONS else ""
            served = ", ".join(str(choice) for choice in choices)
            raise ValueError(f"{name}: {value!r} is not served, only {served}{reason}")


def _check_counts(config: UNetConfig) -> None:
    present = [name for name in _OPTIONAL_COUNTS if getattr(config, name) is not None]
    for name in (*_COUNTS, *present):
        if not _is_count(getattr(config, name)):
            raise ValueError(f"{name} must be a positive integer, not {getattr(config, name)!r}")
    for name in ("conv_in_kernel", "conv_out_kernel"):
        if getattr(config, name) % 2 == 0:
            raise ValueError(f"{name} {getattr(config, name)} must be odd: it keeps the size")


def _check_blocks(config: UNetConfig) -> None:
    levels = len(config.block_out_channels)
    if not levels:
        raise ValueError("block_out_channels is empty")
    for name, served in _BLOCKS.items():
        kinds = getattr(config, name)
        if len(kinds) != levels:
            raise ValueError(f"{name}: {len(kinds)} blocks, but block_out_channels names {levels}")
        if other := sorted(set(kinds) - set(served)):
            raise ValueError(f"{name}: only {' and '.join(served)} are served, not {other}")
    nested = any(isinstance(entry, tuple) for entry in config._transformer_layers)
    if nested and config.reverse_transformer_layers_per_block is None:
        raise ValueError(
            "reverse_transformer_layers_per_block is needed where transformer_layers_per_block "
            "differs within a level"
        )


def _check_conditions(config: UNetConfig) -> None:
    if config.addition_embed_type == "text_time":
        for name in ("addition_time_embed_dim", "projection_class_embeddings_input_dim"):
            if getattr(config, name) is None:
                raise ValueError(f"{name} is needed with addition_embed_type 'text_time'")
    if config.encoder_hid_dim_type is not None and config.encoder_hid_dim is None:
        raise ValueError("encoder_hid_dim is needed with encoder_hid_dim_type")
    if not _is_count(config.projected_text_features):
        raise ValueError(f"cross_attention_dim: {config.cross_attention_dim!r} is no width")


def _check_level(config: UNetConfig, level: Level) -> None:
    for name, count in (
        ("block_out_channels", level.channels),
        ("layers_per_block", level.residual_blocks),
        *((("attention_head_dim", level.heads),) if level.depths else ()),
    ):
        if not _is_count(count):
            raise ValueError(f"{name}: {count!r} should be a positive integer")
    if level.channels % config.norm_num_groups:
        raise ValueError(
            f"block_out_channels: {level.channels} is not a multiple of norm_num_groups, "
            f"{config.norm_num_groups}"
        )
    if level.depths and level.heads > level.channels:
        raise ValueError(
            f"attention_head_dim: {level.heads} heads are more than {level.channels} channels"
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
