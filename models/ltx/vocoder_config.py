"""Vocoder configs of LTX-2 (`vocoder/config.json`), with validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from models.checkpoint.config_fields import arguments

FILE = "vocoder/config.json"
OF_EXTENSION = "bwe_"
"""Prefix of the bandwidth extension's fields."""
ACTIVATIONS = ("leaky_relu", "snake", "snakebeta")
LAST_ACTIVATIONS = ("tanh", "clamp", None)


@dataclass(frozen=True)
class VocoderConfig:
    """Fields of diffusers' LTX2Vocoder config, with its defaults (2.0's).

    Raises:
        ValueError: an unsupported value; names the field.
    """

    in_channels: int = 128
    """Mel bins, over all audio channels."""
    hidden_channels: int = 1024
    out_channels: int = 2
    upsample_kernel_sizes: tuple[int, ...] = (16, 15, 8, 4, 4)
    upsample_factors: tuple[int, ...] = (6, 5, 2, 2, 2)
    resnet_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resnet_dilations: tuple[tuple[int, ...], ...] = ((1, 3, 5),) * 3
    act_fn: str = "leaky_relu"
    leaky_relu_negative_slope: float = 0.1
    antialias: bool = False
    antialias_ratio: int = 2
    antialias_kernel_size: int = 12
    final_act_fn: str | None = "tanh"
    final_bias: bool = True
    output_sampling_rate: int = 24000

    def __post_init__(self) -> None:
        for first, second in (
            ("upsample_kernel_sizes", "upsample_factors"),
            ("resnet_kernel_sizes", "resnet_dilations"),
        ):
            if len(getattr(self, first)) != len(getattr(self, second)):
                raise ValueError(f"vocoder: {first} and {second} must be of one length")
        if self.act_fn not in ACTIVATIONS:
            raise ValueError(f"vocoder: act_fn {self.act_fn!r} must be one of {ACTIVATIONS}")
        if self.final_act_fn not in LAST_ACTIVATIONS:
            raise ValueError(f"vocoder: final_act_fn must be one of {LAST_ACTIVATIONS}")
        if self.antialias and self.act_fn == "leaky_relu":
            raise ValueError("vocoder: antialias must be false with act_fn leaky_relu")
        if self.hidden_channels % 2 ** len(self.upsample_factors):
            raise ValueError(
                f"vocoder: hidden_channels {self.hidden_channels} must halve "
                f"{len(self.upsample_factors)} times"
            )

    @property
    def samples(self) -> int:
        """Audio samples per spectrogram frame."""
        return math.prod(self.upsample_factors)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> VocoderConfig:
        """Parse a single vocoder's `vocoder/config.json`.

        Raises: ValueError: an unknown key or an invalid value.
        """
        return cls(**arguments(cls, config, FILE))


_2_3: Mapping[str, Any] = {
    "hidden_channels": 1536,
    "upsample_kernel_sizes": (11, 4, 4, 4, 4, 4),
    "upsample_factors": (5, 2, 2, 2, 2, 2),
    "act_fn": "snakebeta",
    "antialias": True,
    "final_act_fn": None,
    "final_bias": False,
}
_2_3_EXTENSION: Mapping[str, Any] = {
    **_2_3,
    "hidden_channels": 512,
    "upsample_kernel_sizes": (12, 11, 4, 4, 4),
    "upsample_factors": (6, 5, 2, 2, 2),
}


@dataclass(frozen=True)
class ExtendedVocoderConfig:
    """Config of diffusers' LTX2VocoderWithBWE: a vocoder and a bandwidth extension.

    Raises:
        ValueError: an unsupported value; names the field.
    """

    vocoder: VocoderConfig = VocoderConfig(**_2_3)
    extension: VocoderConfig = VocoderConfig(**_2_3_EXTENSION)
    filter_length: int = 512
    """Window of the Fourier transform in samples."""
    hop_length: int = 80
    """Samples between two windows."""
    window_length: int = 512
    num_mel_channels: int = 64
    input_sampling_rate: int = 16000
    output_sampling_rate: int = 48000

    def __post_init__(self) -> None:
        extension, vocoder = self.extension, self.vocoder
        if self.window_length != self.filter_length:
            raise ValueError("vocoder: window_length must be filter_length")
        if self.output_sampling_rate % self.input_sampling_rate:
            raise ValueError(
                "vocoder: output_sampling_rate must be a multiple of input_sampling_rate"
            )
        if extension.samples != self.hop_length * self.ratio or any(
            (size - factor) % 2
            for size, factor in zip(
                extension.upsample_kernel_sizes, extension.upsample_factors, strict=True
            )
        ):
            raise ValueError(
                "vocoder: bwe_upsample_factors must make hop_length times "
                f"{self.ratio} samples, {self.hop_length * self.ratio}, of a frame"
            )
        if (extension.in_channels, extension.out_channels) != (
            vocoder.out_channels * self.num_mel_channels,
            vocoder.out_channels,
        ):
            raise ValueError("vocoder: bwe_in_channels and bwe_out_channels must fit out_channels")

    @property
    def in_channels(self) -> int:
        """Mel bins, over all audio channels."""
        return self.vocoder.in_channels

    @property
    def out_channels(self) -> int:
        """Number of audio channels of the waveform."""
        return self.vocoder.out_channels

    @property
    def ratio(self) -> int:
        """Output samples per sample of the first vocoder."""
        return self.output_sampling_rate // self.input_sampling_rate

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ExtendedVocoderConfig:
        """Parse a checkpoint's config, where the extension's fields have the prefix `bwe_`.

        Raises: ValueError: an unknown key or an invalid value.
        """
        names = {field.name for field in fields(cls)}
        shared = {key: value for key, value in config.items() if key in names or key[0] == "_"}
        rest = {key: value for key, value in config.items() if key not in shared}
        extension = {
            key.removeprefix(OF_EXTENSION): value
            for key, value in rest.items()
            if key.startswith(OF_EXTENSION)
        }
        vocoder = {key: value for key, value in rest.items() if not key.startswith(OF_EXTENSION)}
        return cls(
            VocoderConfig.from_dict({**_2_3, **vocoder}),
            VocoderConfig.from_dict({**_2_3_EXTENSION, **extension}),
            **arguments(cls, shared, FILE),
        )


def read_vocoder_config(config: Mapping[str, Any]) -> VocoderConfig | ExtendedVocoderConfig:
    """Parse `vocoder/config.json` by its `_class_name`.

    Raises: ValueError: an unsupported class, an unknown key or an invalid value.
    """
    kind = config.get("_class_name", "LTX2Vocoder")
    if kind == "LTX2VocoderWithBWE":
        return ExtendedVocoderConfig.from_dict(config)
    if kind == "LTX2Vocoder":
        return VocoderConfig.from_dict(config)
    raise ValueError(f"vocoder: {kind} is not one of LTX2Vocoder, LTX2VocoderWithBWE")
