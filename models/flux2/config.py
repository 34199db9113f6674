"""FLUX.2 transformer config (`transformer/config.json`), with validation."""

from __future__ import annotations

from dataclasses import dataclass

from models.checkpoint.config_fields import HeadedConfig

AXES = 4
"""Components of a token's position: time, row, column, and index in the text."""


@dataclass(frozen=True)
class Flux2Config(HeadedConfig):
    """Fields of diffusers' Flux2Transformer2DModel config, with its defaults (dev's)."""

    patch_size: int = 1
    in_channels: int = 128
    """Channels of a token: a 2 x 2 patch of latents."""
    out_channels: int | None = None
    num_layers: int = 8
    """Number of double blocks: image and text in separate streams with joint attention."""
    num_single_layers: int = 48
    """Number of single blocks: image and text in one stream."""
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    joint_attention_dim: int = 15360
    """Width of the text encoder's states, concatenated."""
    timestep_guidance_channels: int = 256
    """Width of the timestep's sinusoids."""
    mlp_ratio: float = 3.0
    axes_dims_rope: tuple[int, ...] = (32, 32, 32, 32)
    """Head dimensions rotated by time, row, column and index in the text."""
    rope_theta: int = 2000
    eps: float = 1e-6
    """Epsilon of the norms."""
    guidance_embeds: bool = True
    """Whether a guidance scale is an input (dev)."""

    def __post_init__(self) -> None:
        self.check_integers("num_layers", "num_single_layers", least=0)
        self.check_integers(
            "in_channels",
            "attention_head_dim",
            "num_attention_heads",
            "joint_attention_dim",
            "timestep_guidance_channels",
        )
        if self.patch_size != 1:
            raise ValueError(f"patch_size {self.patch_size} must be 1: latents come packed")
        if self.in_channels % 4:
            raise ValueError(f"in_channels {self.in_channels} must be four times a whole number")
        if self.out_channels not in (None, self.in_channels):
            raise ValueError(f"out_channels {self.out_channels} must be {self.in_channels} or null")
        self.check_rope(AXES)

    @property
    def inner(self) -> int:
        """Hidden features of a feed-forward."""
        return int(self.width * self.mlp_ratio)
