"""Config of an AutoencoderKL: the values of its `config.json`, checked on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from models.checkpoint.config_fields import frozen

Config = TypeVar("Config", bound="VaeConfig")


@dataclass(frozen=True)
class Tiling:
    """Squares that an image is encoded or decoded in, one at a time, where memory is short.

    diffusers' tiles are as large as `sample_size` and begin every three quarters of it; Wan's are
    256 and 192 pixels.

    Raises:
        ValueError: tiles that leave gaps between them.
    """

    side: int
    """Pixels."""
    stride: int
    """Pixels from where one begins to where the next one does; what they share is blended."""

    def __post_init__(self) -> None:
        if not 0 < self.stride <= self.side:
            raise ValueError(
                f"tiles of {self.side} px must begin every 1 to {self.side} px, not {self.stride}"
            )

    def smaller(self, factor: int) -> Tiling:
        """The same tiles, counted in squares of so many pixels.

        Raises: ValueError: they are not whole ones.
        """
        if self.side % factor or self.stride % factor:
            raise ValueError(
                f"tiles of {self.side} px every {self.stride} px: both must be multiples of "
                f"{factor}, which this VAE makes one"
            )
        return Tiling(self.side // factor, self.stride // factor)

    def larger(self, factor: int) -> Tiling:
        """Tiles of so many times the side."""
        return Tiling(self.side * factor, self.stride * factor)


def check_tiling(tiling: Tiling | None, downsampling: int) -> None:
    """Check that tiles are whole latents.

    Raises: ValueError: tiles that are not whole latents, so many pixels wide.
    """
    if tiling is not None:
        tiling.smaller(downsampling)


@dataclass(frozen=True)
class VaeConfig:
    """diffusers' AutoencoderKL. Defaults are those that diffusers takes for an absent key.

    Raises:
        ValueError: the checkpoint asks for a part that this network does not have, or its sizes
            contradict each other; names the key.
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
    """Means by channel; read by SDXL alone, and only together with latents_std."""
    latents_std: tuple[float, ...] | None = None
    force_upcast: bool = True
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True

    @classmethod
    def from_dict(cls: type[Config], config: Mapping[str, Any]) -> Config:
        """Build from the parsed `config.json`; keys that shape no network are left aside."""
        known = {field.name for field in fields(cls)} & config.keys()
        return cls(**{name: frozen(config[name]) for name in known})

    @property
    def downsampling(self) -> int:
        """Pixels a latent, along each side."""
        return 2 ** (len(self.block_out_channels) - 1)

    @property
    def of_decoder(self) -> VaeConfig:
        """Config that the decoder is built by."""
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
