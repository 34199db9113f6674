"""Config of a Wan transformer: its `transformer/config.json`, checked."""

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
    """The fields of diffusers' WanTransformer3DModel config, with its defaults (2.1 T2V 14B's).

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    patch_size: tuple[int, ...] = (1, 2, 2)
    """Latent frames, rows and columns of one token."""
    num_attention_heads: int = 40
    attention_head_dim: int = 128
    in_channels: int = 16
    """Channels of the latents and, for image to video, of the mask and image latents beside
    them."""
    out_channels: int | None = 16
    text_dim: int = 4096
    """Width of UMT5's embeddings."""
    freq_dim: int = 256
    """Width of the timestep's sinusoids."""
    ffn_dim: int = 13824
    num_layers: int = 40
    cross_attn_norm: bool = True
    """Whether the cross attention has a norm before it; it has scale and bias of its own."""
    qk_norm: str | None = "rms_norm_across_heads"
    """Read by nothing in diffusers: queries and keys are normed over all heads in any case."""
    eps: float = 1e-6
    image_dim: int | None = None
    """Width of the image embedding (2.1 image to video); None: the network takes none."""
    added_kv_proj_dim: int | None = None
    """Width from which the image tokens' own keys and values are made; None: they are read
    with the text's."""
    rope_max_seq_len: int = 1024
    """Tokens along one axis, at most."""
    pos_embed_seq_len: int | None = None
    """Image tokens, of all images together, that have a learned position (first and last
    frame)."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.qk_norm not in ("rms_norm_across_heads", None):
            raise ValueError(
                f"qk_norm {self.qk_norm!r}: only rms_norm_across_heads is served, which is what "
                "the reference computes"
            )
        if self.attention_head_dim % 2:
            raise ValueError(
                f"attention_head_dim {self.attention_head_dim} must be even: RoPE turns pairs"
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
        """Features of a token: those of all heads."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def velocity_channels(self) -> int:
        """Channels of the output: `out_channels`, or as many as come in."""
        return self.out_channels or self.in_channels

    @property
    def axes_dims_rope(self) -> tuple[int, int, int]:
        """Head dimensions turned by frame, row and column: a third each, time takes the rest."""
        side = 2 * (self.attention_head_dim // 6)
        return self.attention_head_dim - 2 * side, side, side

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> WanConfig:
        """Read a checkpoint's config.

        Raises: ValueError for a key that this network does not know, or a wrong value.
        """
        return cls(**arguments(cls, config, "transformer/config.json"))
