"""Qwen-Image 2.1 transformer config (`transformer/config.json`), with validation."""

from __future__ import annotations

from dataclasses import dataclass

from models.checkpoint.config_fields import HeadedConfig


@dataclass(frozen=True)
class QwenImage21Config(HeadedConfig):
    """Fields of diffusers' QwenImage21Transformer2DModel config, with its defaults."""

    patch_size: int = 1
    in_channels: int = 64
    """Channels of the latents, one token each."""
    out_channels: int | None = 64
    num_layers: int = 32
    attention_head_dim: int = 128
    num_attention_heads: int = 32
    context_in_dim: int = 4096
    """Width of the text encoder's features."""
    mlp_ratio: int = 3
    """Hidden features of a feed-forward, as a multiple of the width."""
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)
    """Head dimensions rotated by sequence position, row and column."""
    eps: float = 1e-6
    causal_condition: bool = True
    """Whether text has timestep 0."""

    def __post_init__(self) -> None:
        self.check_integers(
            *("in_channels", "num_layers", "attention_head_dim", "num_attention_heads"),
            *("context_in_dim", "mlp_ratio"),
        )
        if self.patch_size != 1:
            raise ValueError(f"patch_size {self.patch_size} must be 1")
        if self.out_channels not in (None, self.in_channels):
            raise ValueError(
                f"out_channels {self.out_channels} must be in_channels {self.in_channels}"
            )
        if not self.causal_condition:
            raise ValueError("causal_condition must be true: text has timestep 0 in Qwen-Image 2.1")
        if len(self.axes_dims_rope) != 3 or any(dim % 2 for dim in self.axes_dims_rope):
            raise ValueError(f"axes_dims_rope {self.axes_dims_rope} must be three even sizes")
        if sum(self.axes_dims_rope) != self.attention_head_dim:
            raise ValueError(
                f"axes_dims_rope {self.axes_dims_rope} must add up to attention_head_dim "
                f"{self.attention_head_dim}"
            )
