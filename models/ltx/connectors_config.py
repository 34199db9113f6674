"""Text connector config of LTX-2 (`connectors/config.json`), with validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint.config_fields import arguments
from models.ltx.rope import KINDS

_COUNTS = (
    "caption_channels",
    "text_proj_in_factor",
    "connector_rope_base_seq_len",
    "video_hidden_dim",
    "audio_hidden_dim",
)
_OF_STREAM = ("num_attention_heads", "attention_head_dim", "num_layers")


@dataclass(frozen=True)
class ConnectorShape:
    """Sizes of one stream's text connector."""

    heads: int
    head_dim: int
    layers: int
    registers: int | None
    """Learned tokens that replace padding; None if padding is masked."""
    gated: bool
    base_tokens: int
    """Token count to which positions are relative."""
    theta: float
    rope: str

    @property
    def width(self) -> int:
        """Width of a token, over all heads."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class ConnectorsConfig:
    """Fields of diffusers' LTX2TextConnectors config, with its defaults.

    Raises:
        ValueError: an unsupported value; names the field.
    """

    caption_channels: int = 3840
    """Width of the language model."""
    text_proj_in_factor: int = 49
    """Number of the language model's hidden states."""
    video_connector_num_attention_heads: int = 30
    video_connector_attention_head_dim: int = 128
    video_connector_num_layers: int = 2
    video_connector_num_learnable_registers: int | None = 128
    video_gated_attn: bool = False
    audio_connector_num_attention_heads: int = 30
    audio_connector_attention_head_dim: int = 128
    audio_connector_num_layers: int = 2
    audio_connector_num_learnable_registers: int | None = 128
    audio_gated_attn: bool = False
    connector_rope_base_seq_len: int = 4096
    rope_theta: float = 10000.0
    rope_double_precision: bool = True
    causal_temporal_positioning: bool = False
    """Ignored, as in the reference."""
    rope_type: str = "interleaved"
    per_modality_projections: bool = False
    """Whether each stream has a separate projection (LTX-2.3)."""
    video_hidden_dim: int = 4096
    audio_hidden_dim: int = 2048
    proj_bias: bool = False

    def __post_init__(self) -> None:
        sizes = [*_COUNTS, *(f"{s}_connector_{n}" for s in ("video", "audio") for n in _OF_STREAM)]
        for name in sizes:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"connectors: {name} must be a positive integer, not {value!r}")
        if self.rope_type not in KINDS:
            raise ValueError(f"connectors: rope_type must be one of {KINDS}")
        if not self.rope_double_precision:
            raise ValueError("connectors: rope_double_precision must be true")
        for name, shape, width in zip(
            ("video", "audio"), (self.video, self.audio), self.widths, strict=True
        ):
            if shape.head_dim % 2:
                raise ValueError(f"connectors: {name}_connector_attention_head_dim must be even")
            if shape.width != width:
                raise ValueError(
                    f"connectors: {name}_connector has {shape.heads} heads of {shape.head_dim}, "
                    f"which must have the {width} features that text is projected to"
                )

    @property
    def projected(self) -> tuple[int, ...]:
        """Widths of the text projections: one shared, or one per stream."""
        if self.per_modality_projections:
            return (self.video_hidden_dim, self.audio_hidden_dim)
        return (self.caption_channels,)

    @property
    def widths(self) -> tuple[int, int]:
        """Text widths of video and audio."""
        return self.projected[0], self.projected[-1]

    @property
    def multiple(self) -> int:
        """Factor by which the token count must be divisible, to fill padding with registers."""
        return math.lcm(*(stream.registers or 1 for stream in (self.video, self.audio)))

    @property
    def video(self) -> ConnectorShape:
        """Sizes of the video stream's text connector."""
        return self._connector("video")

    @property
    def audio(self) -> ConnectorShape:
        """Sizes of the audio stream's text connector."""
        return self._connector("audio")

    def _connector(self, stream: str) -> ConnectorShape:
        heads, head_dim, layers, registers = (
            getattr(self, f"{stream}_connector_{name}")
            for name in (*_OF_STREAM, "num_learnable_registers")
        )
        return ConnectorShape(
            heads,
            head_dim,
            layers,
            registers,
            getattr(self, f"{stream}_gated_attn"),
            self.connector_rope_base_seq_len,
            self.rope_theta,
            self.rope_type,
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ConnectorsConfig:
        """Parse `connectors/config.json`.

        Raises: ValueError: an unknown key or an invalid value.
        """
        return cls(**arguments(cls, config, "connectors/config.json"))
