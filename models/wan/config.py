"""Wan transformer config (`transformer/config.json`), with validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint.config_fields import arguments

_SIZES = (
    "num_attention_heads",
    "attention_head_dim",
    "in_channels",
    "text_dim",
    "freq_dim",
    "ffn_dim",
    "num_layers",
    "rope_max_seq_len",
)
_OPTIONAL_SIZES = ("out_channels", "image_dim", "added_kv_proj_dim", "pos_embed_seq_len")


@dataclass(frozen=True)
class WanConfig:
    """Fields of diffusers' WanTransformer3DModel config, with its defaults (2.1 T2V 14B's).

    Raises:
        ValueError: a value that the network does not support; names the field.
    """

    patch_size: tuple[int, ...] = (1, 2, 2)
    """Latent frames, rows and columns of one token."""
    num_attention_heads: int = 40
    attention_head_dim: int = 128
    in_channels: int = 16
    """Channels of the latents; for image-to-video, plus those of the mask and the image latents."""
    out_channels: int | None = 16
    text_dim: int = 4096
    """Width of UMT5's embeddings."""
    freq_dim: int = 256
    """Width of the timestep's sinusoids."""
    ffn_dim: int = 13824
    num_layers: int = 40
    cross_attn_norm: bool = True
    """Whether cross-attention has a preceding norm, with scale and bias."""
    qk_norm: str | None = "rms_norm_across_heads"
    """Ignored, as in diffusers: queries and keys are always normalized over all heads."""
    eps: float = 1e-6
    image_dim: int | None = None
    """Width of the image embedding (2.1 image-to-video); None if the network takes no image
    embedding."""
    added_kv_proj_dim: int | None = None
    """Input width of separate key and value projections for image tokens; None if image tokens
    share the text's."""
    rope_max_seq_len: int = 1024
    """Maximum tokens along one axis."""
    pos_embed_seq_len: int | None = None
    """Number of image tokens with a learned position, over all images (first and last frame)."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.qk_norm not in ("rms_norm_across_heads", None):
            raise ValueError(
                f"qk_norm {self.qk_norm!r}: only rms_norm_across_heads is served, which is what "
                "the reference computes"
            )
        if self.attention_head_dim % 2:
            raise ValueError(
                f"attention_head_dim {self.attention_head_dim} must be even: RoPE rotates pairs"
            )
        if self.added_kv_proj_dim not in (None, self.width):
            raise ValueError(
                f"added_kv_proj_dim {self.added_kv_proj_dim} must be num_attention_heads · "
                f"attention_head_dim = {self.width}: the image tokens come in the network's width"
            )

    def _check_numbers(self) -> None:
        if len(self.patch_size) != 3:
            raise ValueError(f"patch_size must be three sizes, not {self.patch_size!r}")
        sizes = [("patch_size", size) for size in self.patch_size]
        sizes += [(name, getattr(self, name)) for name in _SIZES]
        optional = ((name, getattr(self, name)) for name in _OPTIONAL_SIZES)
        sizes += [(name, size) for name, size in optional if size is not None]
        for name, size in sizes:
            if type(size) is not int or size < 1:
                raise ValueError(f"{name} must be a positive integer, not {size!r}")
        if type(self.eps) not in (int, float) or not 0 < self.eps < math.inf:
            raise ValueError(f"eps must be a positive number, not {self.eps!r}")
        if type(self.cross_attn_norm) is not bool:
            raise ValueError(f"cross_attn_norm must be true or false, not {self.cross_attn_norm!r}")

    @property
    def width(self) -> int:
        """Width of a token, over all heads."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def velocity_channels(self) -> int:
        """Output channels: `out_channels`, by default `in_channels`."""
        return self.out_channels or self.in_channels

    @property
    def axes_dims_rope(self) -> tuple[int, int, int]:
        """Head dimensions rotated by frame, row and column: about a third each."""
        side = 2 * (self.attention_head_dim // 6)
        return self.attention_head_dim - 2 * side, side, side

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> WanConfig:
        """Parse the `transformer/config.json` of Wan.

        Raises: ValueError: an unknown key or an invalid value.
        """
        return cls(**arguments(cls, config, "transformer/config.json"))
