"""Config of LTX-2's video and audio transformer (`transformer/config.json`), with validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint.config_fields import arguments
from models.ltx.attention import HeadsShape
from models.ltx.rope import KINDS

_SIZES = (
    "in_channels",
    "num_attention_heads",
    "attention_head_dim",
    "cross_attention_dim",
    "pos_embed_max_pos",
    "base_height",
    "base_width",
    "audio_in_channels",
    "audio_num_attention_heads",
    "audio_attention_head_dim",
    "audio_cross_attention_dim",
    "audio_scale_factor",
    "audio_pos_embed_max_pos",
    "audio_sampling_rate",
    "audio_hop_length",
    "num_layers",
    "caption_channels",
    "timestep_scale_multiplier",
    "cross_attn_timestep_scale_multiplier",
)
_FIXED: Mapping[str, Any] = {
    "patch_size": 1,
    "patch_size_t": 1,
    "audio_patch_size": 1,
    "audio_patch_size_t": 1,
    "activation_fn": "gelu-approximate",
    "qk_norm": "rms_norm_across_heads",
    "norm_elementwise_affine": False,
    "rope_double_precision": True,
    "use_keyframes_abs_pos_embedding": False,
}
"""LTX-2 transformer fields with a single supported value."""


@dataclass(frozen=True)
class StreamSizes:
    """Sizes of one stream (video or audio) of the transformer."""

    channels: int
    heads: int
    head_dim: int
    context: int
    """Width of the stream's text."""
    gated: bool
    modulated_context: bool
    """Whether time modulates the queries to the text and the attention's output (LTX-2.3)."""
    feed_forward_bias: bool

    @property
    def width(self) -> int:
        """Width of a token, over all heads."""
        return self.heads * self.head_dim

    @property
    def vectors(self) -> int:
        """Number of modulation vectors per block."""
        return 9 if self.modulated_context else 6


@dataclass(frozen=True)
class LTX2Config:
    """Fields of diffusers' LTX2VideoTransformer3DModel config, with the defaults of LTX-2.0.

    Raises:
        ValueError: an unsupported value; names the field.
    """

    in_channels: int = 128
    out_channels: int | None = 128
    patch_size: int = 1
    patch_size_t: int = 1
    num_attention_heads: int = 32
    attention_head_dim: int = 128
    cross_attention_dim: int = 4096
    vae_scale_factors: tuple[int, ...] = (8, 32, 32)
    """Frames, rows and columns of pixels per latent."""
    pos_embed_max_pos: int = 20
    """Seconds to which positions in time are relative."""
    base_height: int = 2048
    base_width: int = 2048
    gated_attn: bool = False
    cross_attn_mod: bool = False
    audio_in_channels: int = 128
    audio_out_channels: int | None = 128
    audio_patch_size: int = 1
    audio_patch_size_t: int = 1
    audio_num_attention_heads: int = 32
    audio_attention_head_dim: int = 64
    audio_cross_attention_dim: int = 2048
    audio_scale_factor: int = 4
    """Spectrogram frames per latent."""
    audio_pos_embed_max_pos: int = 20
    audio_sampling_rate: int = 16000
    audio_hop_length: int = 160
    audio_gated_attn: bool = False
    audio_cross_attn_mod: bool = False
    num_layers: int = 48
    activation_fn: str = "gelu-approximate"
    qk_norm: str = "rms_norm_across_heads"
    norm_elementwise_affine: bool = False
    norm_eps: float = 1e-6
    caption_channels: int = 3840
    attention_bias: bool = True
    attention_out_bias: bool = True
    rope_theta: float = 10000.0
    rope_double_precision: bool = True
    causal_offset: int = 1
    timestep_scale_multiplier: int = 1000
    cross_attn_timestep_scale_multiplier: int = 1000
    rope_type: str = "interleaved"
    use_prompt_embeddings: bool = True
    """Whether the transformer projects the text (LTX-2.0)."""
    perturbed_attn: bool = False
    """Whether blocks can replace attention by the values (spatio-temporal guidance)."""
    ff_bias: bool = True
    audio_ff_bias: bool = True
    use_prompt_adaln_single: bool = True
    """Whether time modulates the text's keys and values; otherwise only a table does."""
    use_keyframes_abs_pos_embedding: bool = False

    def __post_init__(self) -> None:
        for name in _SIZES:
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a positive integer, not {getattr(self, name)!r}")
        for name, value in _FIXED.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} must be {value!r}, not {getattr(self, name)!r}")
        if self.rope_type not in KINDS:
            raise ValueError(f"rope_type must be one of {KINDS}, not {self.rope_type!r}")
        for source, other in (
            ("in_channels", "out_channels"),
            ("audio_in_channels", "audio_out_channels"),
        ):
            if getattr(self, other) not in (None, getattr(self, source)):
                raise ValueError(f"{other} must be {source} {getattr(self, source)} or null")
        self._check_heads()

    def _check_heads(self) -> None:
        for name, stream in (("attention_head_dim", self.video), ("audio", self.audio)):
            if stream.head_dim % 2:
                raise ValueError(f"{name} {stream.head_dim} must be even: RoPE rotates pairs")
        if self.audio_cross_attention_dim != self.audio.width:
            raise ValueError(
                f"audio_cross_attention_dim {self.audio_cross_attention_dim} must be the width "
                f"{self.audio.width} of the audio: the positions of both streams have it"
            )
        if self.num_attention_heads != self.audio_num_attention_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} and audio_num_attention_heads "
                f"{self.audio_num_attention_heads} must be equal: the streams attend to each other"
            )
        as_wide = self.use_prompt_embeddings or self.modulates_text
        if as_wide and self.cross_attention_dim != self.video.width:
            raise ValueError(
                f"cross_attention_dim {self.cross_attention_dim} must be the width "
                f"{self.video.width} that text is projected to or modulated in"
            )

    @property
    def video(self) -> StreamSizes:
        """Sizes of the transformer's video stream."""
        return StreamSizes(
            self.in_channels,
            self.num_attention_heads,
            self.attention_head_dim,
            self.cross_attention_dim,
            self.gated_attn,
            self.cross_attn_mod,
            self.ff_bias,
        )

    @property
    def audio(self) -> StreamSizes:
        """Sizes of the transformer's audio stream."""
        return StreamSizes(
            self.audio_in_channels,
            self.audio_num_attention_heads,
            self.audio_attention_head_dim,
            self.audio_cross_attention_dim,
            self.audio_gated_attn,
            self.audio_cross_attn_mod,
            self.audio_ff_bias,
        )

    @property
    def modulates_text(self) -> bool:
        """Return whether the text's keys and values are modulated (LTX-2.3)."""
        return self.cross_attn_mod or self.audio_cross_attn_mod

    def heads(
        self, query_stream: StreamSizes, key_width: int, inside: StreamSizes | None = None
    ) -> HeadsShape:
        """Return the shape of an attention layer.

        Args:
            query_stream: stream of the query tokens.
            key_width: width of the key and value tokens.
            inside: stream whose heads are used; None: those of the query stream.
        """
        inside = inside or query_stream
        return HeadsShape(
            query_stream.width,
            key_width,
            inside.heads,
            inside.head_dim,
            gated=query_stream.gated,
            rope=self.rope_type,
            use_bias=self.attention_bias,
            use_out_bias=self.attention_out_bias,
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LTX2Config:
        """Parse the `transformer/config.json` of LTX-2.

        Raises: ValueError: an unknown key or an invalid value.
        """
        return cls(**arguments(cls, config, "transformer/config.json"))
