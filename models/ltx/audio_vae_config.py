"""Audio autoencoder config of LTX-2 (`audio_vae/config.json`), with validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint.config_fields import arguments

COMPRESSION = 4
"""Spectrogram frames, and mel bins, per latent; the same in every LTX-2."""
_FIXED: Mapping[str, Any] = {
    "norm_type": "pixel",
    "causality_axis": "height",
    "attn_resolutions": None,
    "mid_block_add_attention": False,
}
"""Audio autoencoder fields with a single supported value."""
_OF_ENCODER = frozenset({"double_z", "dropout", "in_channels", "is_causal", "resolution"})


@dataclass(frozen=True)
class LTX2AudioVaeConfig:
    """Fields of diffusers' AutoencoderKLLTX2Audio config that decoding uses.

    Raises:
        ValueError: an unsupported value; names the field.
    """

    base_channels: int = 128
    output_channels: int = 2
    """Audio channels."""
    ch_mult: tuple[int, ...] = (1, 2, 4)
    num_res_blocks: int = 2
    attn_resolutions: tuple[int, ...] | None = None
    latent_channels: int = 8
    norm_type: str = "pixel"
    causality_axis: str = "height"
    """Time axis of a spectrogram."""
    mid_block_add_attention: bool = False
    sample_rate: int = 16000
    mel_hop_length: int = 160
    """Samples between two spectrogram frames."""
    mel_bins: int = 64

    def __post_init__(self) -> None:
        for name, value in _FIXED.items():
            if (getattr(self, name) or None) != (value or None):
                raise ValueError(f"audio_vae: {name} must be {value}")
        if self.base_channels != self.features:
            raise ValueError(
                f"audio_vae: base_channels {self.base_channels} must be latent_channels times "
                f"mel_bins // {COMPRESSION}, {self.features}: its statistics are of as many"
            )

    @property
    def latent_bins(self) -> int:
        """Mel bins of the audio latents."""
        return self.mel_bins // COMPRESSION

    @property
    def features(self) -> int:
        """Features of a token: all channels and bins at one time."""
        return self.latent_channels * self.latent_bins

    @property
    def latents_per_s(self) -> float:
        """Tokens per second of audio."""
        return self.sample_rate / self.mel_hop_length / COMPRESSION

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each decoder level, the widest last."""
        return tuple(self.base_channels * times for times in self.ch_mult)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LTX2AudioVaeConfig:
        """Parse `audio_vae/config.json`.

        Raises: ValueError: an unknown key or an invalid value.
        """
        return cls(**arguments(cls, config, "audio_vae/config.json", _OF_ENCODER))
