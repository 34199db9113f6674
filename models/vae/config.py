"""Config of an AutoencoderKL, checked on construction, and of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from models.checkpoint.config_fields import frozen

Config = TypeVar("Config", bound="VaeConfig")


@dataclass(frozen=True)
class Tiling:
    """Square tiles in which an image is encoded or decoded one at a time, to save memory.

    diffusers' tiles have the size `sample_size` and start every three quarters of it; Wan's are 256
    and 192 pixels.

    Raises:
        ValueError: tiles with gaps between them.
    """

    side: int
    """Pixels of a tile's side."""
    stride: int
    """Pixels between the starts of adjacent tiles; their overlap is blended."""

    def __post_init__(self) -> None:
        if not 0 < self.stride <= self.side:
            raise ValueError(
                f"tiles of {self.side} px must begin every 1 to {self.side} px, not {self.stride}"
            )

    def smaller(self, factor: int) -> Tiling:
        """Divide side and stride by a factor, to count in latents.

        Raises: ValueError: they are not multiples of it.
        """
        if self.side % factor or self.stride % factor:
            raise ValueError(
                f"tiles of {self.side} px every {self.stride} px: both must be multiples of "
                f"{factor}, which this VAE makes one"
            )
        return Tiling(self.side // factor, self.stride // factor)

    def larger(self, factor: int) -> Tiling:
        """Multiply the tiles' side and stride by a factor."""
        return Tiling(self.side * factor, self.stride * factor)


def check_tiling(tiling: Tiling | None, downsampling: int) -> None:
    """Check that the sides and strides of tiles are whole latents.

    Raises: ValueError: a side or stride that is not a multiple of `downsampling`.
    """
    if tiling is not None:
        tiling.smaller(downsampling)


@dataclass(frozen=True)
class VaeConfig:
    """Config of diffusers' AutoencoderKL. Defaults are diffusers' for absent keys.

    Raises:
        ValueError: an unsupported part, or sizes that contradict each other; names the key.
    """

    in_channels: int = 3
    out_channels: int = 3
    down_block_types: tuple[str, ...] = ("DownEncoderBlock2D",)
    up_block_types: tuple[str, ...] = ("UpDecoderBlock2D",)
    block_out_channels: tuple[int, ...] = (64,)
    layers_per_block: int = 1
    act_fn: str = "silu"
    latent_channels: int = 4
    norm_num_groups: int = 32
    sample_size: int = 32
    scaling_factor: float = 0.18215
    shift_factor: float | None = None
    latents_mean: tuple[float, ...] | None = None
    """Means by channel; read by SDXL only, and only together with latents_std."""
    latents_std: tuple[float, ...] | None = None
    force_upcast: bool = True
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True

    @classmethod
    def from_dict(cls: type[Config], config: Mapping[str, Any]) -> Config:
        """Build from the parsed `config.json`; ignore keys that do not shape the network."""
        names = {field.name for field in fields(cls)} & config.keys()
        return cls(**{name: frozen(config[name]) for name in names})

    @property
    def downsampling(self) -> int:
        """Pixels per latent, along each side."""
        return int(2 ** (len(self.block_out_channels) - 1))

    @property
    def of_decoder(self) -> VaeConfig:
        """Config of the VAE's decoder."""
        return self

    def __post_init__(self) -> None:
        for key, only in (
            ("down_block_types", "DownEncoderBlock2D"),
            ("up_block_types", "UpDecoderBlock2D"),
        ):
            kinds = getattr(self, key)
            if set(kinds) != {only}:
                raise ValueError(f"{key}: only {only} is served, not {sorted(set(kinds))}")
            if len(kinds) != len(self.block_out_channels):
                raise ValueError(
                    f"{key}: {len(kinds)} blocks, but block_out_channels names "
                    f"{len(self.block_out_channels)}"
                )
        for key in ("latents_mean", "latents_std"):
            values = getattr(self, key)
            if values is not None and len(values) != self.latent_channels:
                raise ValueError(
                    f"{key}: {len(values)} numbers, but latent_channels is {self.latent_channels}"
                )
        if self.act_fn not in ("silu", "swish"):
            raise ValueError(f"act_fn: only silu is served, not {self.act_fn!r}")
        for channels in self.block_out_channels:
            if channels % self.norm_num_groups:
                raise ValueError(
                    f"block_out_channels: {channels} is not a multiple of "
                    f"norm_num_groups, {self.norm_num_groups}"
                )
