"""Video autoencoder config of LTX-2 (`vae/config.json`), with validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from models.checkpoint.config_fields import arguments

STRIDES: Mapping[str, tuple[int, int, int]] = {
    "spatial": (1, 2, 2),
    "temporal": (2, 1, 1),
    "spatiotemporal": (2, 2, 2),
}
"""Strides over frames, rows and columns, by resampling type."""
PADDINGS: Mapping[str, str] = {"zeros": "constant", "reflect": "reflect"}
"""Padding of rows and columns: the config's name, and NumPy's mode."""
_OFF = ("timestep_conditioning", "decoder_inject_noise")


class VaeLevel(NamedTuple):
    """One resolution level of the video encoder or decoder."""

    width_in: int
    width: int
    layers: int
    stride: tuple[int, int, int] | None
    """Stride of the resampling; None without resampling."""
    residual: bool = True
    """Whether the resampling has a shortcut around its convolution."""
    factor: int = 1
    """Factor by which this level's upsampling divides the width."""


@dataclass(frozen=True)
class LTX2VideoVaeConfig:
    """Fields of diffusers' AutoencoderKLLTX2Video config, with its defaults.

    Raises:
        ValueError: an unsupported value; names the field.
    """

    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 128
    block_out_channels: tuple[int, ...] = (256, 512, 1024, 2048)
    down_block_types: tuple[str, ...] = ("LTX2VideoDownBlock3D",) * 4
    decoder_block_out_channels: tuple[int, ...] = (256, 512, 1024)
    layers_per_block: tuple[int, ...] = (4, 6, 6, 2, 2)
    decoder_layers_per_block: tuple[int, ...] = (5, 5, 5, 5)
    spatio_temporal_scaling: bool | tuple[bool, ...] = (True, True, True, True)
    decoder_spatio_temporal_scaling: bool | tuple[bool, ...] = (True, True, True)
    decoder_inject_noise: bool | tuple[bool, ...] = (False, False, False, False)
    downsample_type: tuple[str, ...] = (
        "spatial",
        "temporal",
        "spatiotemporal",
        "spatiotemporal",
    )
    upsample_type: tuple[str, ...] = ("spatiotemporal",) * 3
    upsample_residual: bool | tuple[bool, ...] = (True, True, True)
    upsample_factor: tuple[int, ...] = (2, 2, 2)
    timestep_conditioning: bool = False
    patch_size: int = 4
    patch_size_t: int = 1
    resnet_norm_eps: float = 1e-6
    scaling_factor: float = 1.0
    encoder_causal: bool = True
    decoder_causal: bool = True
    encoder_spatial_padding_mode: str = "zeros"
    decoder_spatial_padding_mode: str = "reflect"
    spatial_compression_ratio: int | None = None
    temporal_compression_ratio: int | None = None

    def __post_init__(self) -> None:
        for name in _OFF:
            value = getattr(self, name)
            if any(value) if isinstance(value, tuple) else value:
                raise ValueError(f"vae: {name} must be false")
        if self.patch_size_t != 1:
            raise ValueError(f"vae: patch_size_t {self.patch_size_t} must be 1")
        if {*self.down_block_types} != {"LTX2VideoDownBlock3D"}:
            raise ValueError("vae: down_block_types must be LTX2VideoDownBlock3D")
        for name in ("encoder_spatial_padding_mode", "decoder_spatial_padding_mode"):
            if getattr(self, name) not in PADDINGS:
                raise ValueError(f"vae: {name} must be one of {sorted(PADDINGS)}")
        for name in ("downsample_type", "upsample_type"):
            if {*getattr(self, name)} - {*STRIDES}:
                raise ValueError(f"vae: {name} must be of {sorted(STRIDES)}")
        for down in self.down:
            if down.stride is None and down.width_in != down.width:
                raise ValueError("vae: a level that does not downsample must keep its width")
        for up in self.up:
            if up.stride is None and up.factor != 1:
                raise ValueError("vae: a level that does not upsample has an upsample_factor of 1")

    @property
    def down(self) -> tuple[VaeLevel, ...]:
        """Levels of the video encoder, in execution order."""
        widths = (self.latent_channels, *self.block_out_channels)
        return tuple(
            VaeLevel(
                widths[n],
                width,
                self.layers_per_block[n],
                STRIDES[self.downsample_type[n]] if scales else None,
            )
            for n, (width, scales) in enumerate(
                zip(
                    self.block_out_channels,
                    _each(self.spatio_temporal_scaling, len(self.block_out_channels)),
                    strict=True,
                )
            )
        )

    @property
    def up(self) -> tuple[VaeLevel, ...]:
        """Levels of the video decoder, in execution order.

        Widths are divided by each level's factor. Upsampling types are in execution order in the
        config as well.

        Raises: ValueError: a level whose width does not match its predecessor's and its factor.
        """
        count = len(self.decoder_block_out_channels)
        scales, residuals = (
            _each(value, count)[::-1]
            for value in (self.decoder_spatio_temporal_scaling, self.upsample_residual)
        )
        layers, before = self.decoder_layers_per_block[::-1], self.decoder_block_out_channels[-1]
        levels = []
        for n, (width, factor) in enumerate(
            zip(self.decoder_block_out_channels[::-1], self.upsample_factor[::-1], strict=True)
        ):
            if factor != 1 and (before != width or width % factor):
                raise ValueError(
                    f"vae: decoder_block_out_channels {width} after {before} do not fit "
                    f"upsample_factor {factor}"
                )
            stride = STRIDES[self.upsample_type[n]] if scales[n] else None
            levels.append(
                VaeLevel(before, width // factor, layers[n + 1], stride, residuals[n], factor)
            )
            before = width // factor
        return tuple(levels)

    @property
    def downsampling(self) -> tuple[int, int, int]:
        """Frames, rows and columns of pixels per latent."""
        strides = [level.stride for level in self.down if level.stride]
        frames, rows, columns = (math.prod(sizes) for sizes in zip(*strides, strict=True))
        return frames, self.patch_size * rows, self.patch_size * columns

    @property
    def patched(self) -> int:
        """Channels of a patch of pixels."""
        return self.in_channels * self.patch_size**2

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LTX2VideoVaeConfig:
        """Parse the `vae/config.json` of LTX-2.

        Raises: ValueError: an unknown key or an invalid value.
        """
        return cls(**arguments(cls, config, "vae/config.json"))


def _each(value: bool | tuple[bool, ...], count: int) -> tuple[bool, ...]:
    return value if isinstance(value, tuple) else (value,) * count
