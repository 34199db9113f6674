"""Latent upsampler config of LTX-2 (`latent_upsampler/config.json`), with validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from models.checkpoint.config_fields import arguments

GROUPS = 32
"""Number of normalization groups; the same in every LTX-2."""
SCALES: Mapping[float, Fraction] = {1.5: Fraction(3, 2), 2.0: Fraction(2), 4.0: Fraction(4)}
"""Supported enlargement factors of rows and columns."""
_FIXED: Mapping[str, Any] = {"dims": 3, "spatial_upsample": True, "temporal_upsample": False}
"""Latent upsampler fields with a single supported value."""
_WITHOUT_EFFECT = frozenset({"rational_resampler", "spatial_scale"})
"""Original names of two fields that some published configs contain; ignored, as in diffusers."""


@dataclass(frozen=True)
class LatentUpsamplerConfig:
    """Fields of diffusers' LTX2LatentUpsamplerModel config, with its defaults.

    Raises:
        ValueError: an unsupported value; names the field.
    """

    in_channels: int = 128
    mid_channels: int = 1024
    num_blocks_per_stage: int = 4
    dims: int = 3
    spatial_upsample: bool = True
    temporal_upsample: bool = False
    rational_spatial_scale: float = 2.0
    use_rational_resampler: bool = True

    def __post_init__(self) -> None:
        for name, value in _FIXED.items():
            if getattr(self, name) != value:
                raise ValueError(f"latent_upsampler: {name} must be {value}")
        if self.mid_channels % GROUPS:
            raise ValueError(f"latent_upsampler: mid_channels must be a multiple of {GROUPS}")
        if self.rational_spatial_scale not in SCALES:
            scales = " or ".join(map(str, SCALES))
            raise ValueError(f"latent_upsampler: rational_spatial_scale must be {scales}")

    @property
    def scale(self) -> Fraction:
        """Scale factor of both sides: upsample by the numerator, decimate by the denominator."""
        return SCALES[self.rational_spatial_scale if self.use_rational_resampler else 2.0]

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LatentUpsamplerConfig:
        """Parse `latent_upsampler/config.json`.

        Raises: ValueError: an unknown key or an invalid value.
        """
        return cls(**arguments(cls, config, "latent_upsampler/config.json", _WITHOUT_EFFECT))
