"""Config of a video autoencoder, checked on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from models.checkpoint.config_fields import arguments

C = TypeVar("C", bound="VideoVaeConfig")

WITHOUT_EFFECT = frozenset({"dropout", "clip_output"})
"""Keys of published configs without effect at inference: diffusers has no dropout outside training,
and clips the pixels for any `clip_output`."""

_WAN_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
_WAN_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)

_SIZES = (
    *("base_dim", "decoder_base_dim", "z_dim", "num_res_blocks", "in_channels", "out_channels"),
    *("patch_size", "scale_factor_temporal", "scale_factor_spatial"),
)


@dataclass(frozen=True)
class VideoVaeConfig:
    """Fields of diffusers' AutoencoderKLWan config, with its defaults (Wan 2.1's).

    Raises:
        ValueError: a value that no such network can have; names the key and the rule.
    """

    base_dim: int = 96
    """Base width of the encoder; blocks have `dim_mult` times as many channels."""
    decoder_base_dim: int | None = None
    """Base width of the decoder; None: the encoder's."""
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    attn_scales: tuple[float, ...] = ()
    """Sizes relative to the input at which the encoder's residual blocks are followed by attention
    (2.1 only; the decoder has none)."""
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    """Whether each halving of the size also halves the frames."""
    latents_mean: tuple[float, ...] = _WAN_MEAN
    latents_std: tuple[float, ...] = _WAN_STD
    """Deviations of the encoder's latents by channel; the denoising network uses normalized
    latents."""
    is_residual: bool = False
    """Whether blocks have shortcuts around their resampling (2.2)."""
    in_channels: int = 3
    out_channels: int = 3
    """Channels of the patches: colours times `patch_size` squared."""
    patch_size: int | None = None
    """Side of the square of pixels that forms one position's channels; None: 1."""
    scale_factor_temporal: int = 4
    scale_factor_spatial: int = 8
    """Divisor of a request's sides, as `scale_factor_temporal` of its frames, that gives the
    latents' size."""

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            optional = name in ("decoder_base_dim", "patch_size") and value is None
            if not optional and (type(value) is not int or value < 1):
                raise ValueError(f"{name} must be a positive integer, not {value!r}")
        self._check_blocks()
        for name in ("latents_mean", "latents_std"):
            if len(getattr(self, name)) != self.z_dim:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} values, one for each of the "
                    f"z_dim {self.z_dim} channels is needed"
                )
        if any(not value for value in self.latents_std):
            raise ValueError("latents_std must not be zero: latents are divided by it")
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.patch**2:
                raise ValueError(
                    f"{name} {getattr(self, name)} must be a multiple of patch_size squared, "
                    f"{self.patch**2}"
                )
        if self.is_residual:
            self._check_shortcuts()

    def _check_blocks(self) -> None:
        if not self.dim_mult or any(type(m) is not int or m < 1 for m in self.dim_mult):
            raise ValueError(f"dim_mult must be positive integers, not {self.dim_mult!r}")
        if len(self.temperal_downsample) < self.halvings:
            raise ValueError(
                f"temperal_downsample has {len(self.temperal_downsample)} values, but dim_mult "
                f"makes {self.halvings} halvings"
            )

    def _check_shortcuts(self) -> None:
        """Check that the shortcuts of a video VAE average or repeat whole groups of channels."""
        widths, resampled = self.encoder_widths, (*self.downsamples, None)
        for narrow, wide, in_time in zip(widths[:-1], widths[1:], resampled, strict=True):
            _check_group(narrow * _positions(in_time), wide, "base_dim")
        widths = self.decoder_widths[:-1]
        for wide, narrow, in_time in zip(widths[:-1], widths[1:], self.upsamples, strict=True):
            _check_group(narrow * _positions(in_time), wide, "decoder_base_dim")

    @property
    def patch(self) -> int:
        """Side of the square of pixels that forms one position."""
        return self.patch_size or 1

    @property
    def halvings(self) -> int:
        """Number of times the size is halved, between the blocks of `dim_mult`."""
        return len(self.dim_mult) - 1

    @property
    def downsampling(self) -> int:
        """Pixels per latent, along each side."""
        return self.patch * int(2**self.halvings)

    @property
    def downsamples(self) -> tuple[bool, ...]:
        """Halvings of the encoder, in order: whether each also halves the frames."""
        return self.temperal_downsample[: self.halvings]

    @property
    def upsamples(self) -> tuple[bool, ...]:
        """Doublings of the decoder, in order: whether each also doubles the frames."""
        return self.temperal_downsample[::-1][: self.halvings]

    @property
    def encoder_widths(self) -> tuple[int, ...]:
        """Channels before the encoder's first block and after each block."""
        return tuple(self.base_dim * m for m in (1, *self.dim_mult))

    @property
    def decoder_widths(self) -> tuple[int, ...]:
        """Channels before the decoder's first block and after each block."""
        base = self.base_dim if self.decoder_base_dim is None else self.decoder_base_dim
        return tuple(base * m for m in (self.dim_mult[-1], *self.dim_mult[::-1]))

    @classmethod
    def from_dict(cls: type[C], config: Mapping[str, Any]) -> C:
        """Read a checkpoint's config, of an AutoencoderKLWan or an AutoencoderKLQwenImage.

        The latter is Wan 2.1's, with one field for input and output colours.

        Raises: ValueError: an unknown key or a wrong value.
        """
        given = dict(config)
        if "input_channels" in given:
            given |= dict.fromkeys(("in_channels", "out_channels"), given.pop("input_channels"))
        return cls(**arguments(cls, given, "vae/config.json", WITHOUT_EFFECT))


def _positions(in_time: bool | None) -> int:
    """Return how many positions a VAE's resampling merges into one; None: no resampling."""
    return 1 if in_time is None else 8 if in_time else 4


def _check_group(many: int, few: int, name: str) -> None:
    if many % few:
        raise ValueError(
            f"{name}, dim_mult: a shortcut of is_residual has to bring {many} channels and "
            f"positions to {few}, which does not divide them"
        )
