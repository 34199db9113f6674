"""Chroma transformer config (`transformer/config.json`), with validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from models.checkpoint.config_fields import HeadedConfig


@dataclass(frozen=True)
class ChromaConfig(HeadedConfig):
    """Fields of diffusers' ChromaTransformer2DModel config, with its defaults."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {"guidance_embeds", "pooled_projection_dim"}
    )
    """Fields of Flux, from whose config Chroma's was made."""

    in_channels: int = 64
    """Channels of a token: a 2 x 2 patch of latents."""
    num_layers: int = 19
    """Number of double blocks: image and text in separate streams with joint attention."""
    num_single_layers: int = 38
    """Number of single blocks: image and text in one stream."""
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    """Width of T5's embeddings."""
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)
    """Head dimensions rotated by index, row and column."""
    approximator_num_channels: int = 64
    """Features from which the approximator computes a vector."""
    approximator_hidden_dim: int = 5120
    approximator_layers: int = 5
    patch_size: int = 1
    out_channels: int | None = None

    def __post_init__(self) -> None:
        self.check_integers("num_layers", "num_single_layers", "approximator_layers", least=0)
        self.check_integers(
            *("in_channels", "attention_head_dim", "num_attention_heads", "joint_attention_dim"),
            *("approximator_num_channels", "approximator_hidden_dim"),
        )
        self.check_rope(3)
        if self.patch_size != 1:
            raise ValueError(
                f"patch_size {self.patch_size}: Chroma packs its latents, it must be 1"
            )
        if self.out_channels not in (None, self.in_channels):
            raise ValueError(
                f"out_channels {self.out_channels} must be in_channels {self.in_channels}"
            )
        if self.approximator_num_channels % 4:
            raise ValueError(
                f"approximator_num_channels {self.approximator_num_channels} must be a multiple "
                "of 4: a quarter each for time and guidance, and half for the vector's index"
            )
