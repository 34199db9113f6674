"""Krea 2 transformer config (`transformer/config.json`), with validation."""

from __future__ import annotations

from dataclasses import dataclass

from models.checkpoint.config_fields import HeadedConfig


@dataclass(frozen=True)
class Krea2Config(HeadedConfig):
    """Fields of diffusers' Krea2Transformer2DModel config, with its defaults."""

    in_channels: int = 64
    """Channels of a token: a patch of latents."""
    num_layers: int = 28
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    num_key_value_heads: int = 12
    """Heads of keys and values; each serves several query heads."""
    intermediate_size: int = 16384
    """Hidden features of a feed-forward."""
    timestep_embed_dim: int = 256
    """Width of the timestep's sinusoids."""
    text_hidden_dim: int = 2560
    """Width of one hidden state of the text encoder."""
    num_text_layers: int = 12
    """Number of the text encoder's hidden states."""
    text_num_attention_heads: int = 20
    text_num_key_value_heads: int = 20
    text_intermediate_size: int = 6912
    num_layerwise_text_blocks: int = 2
    """Blocks in which the states of one token attend to each other."""
    num_refiner_text_blocks: int = 2
    """Blocks in which the tokens of a text attend to each other."""
    axes_dims_rope: tuple[int, ...] = (32, 48, 48)
    """Head dimensions rotated by image, row and column."""
    rope_theta: float = 1000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        self.check_integers(
            *("in_channels", "num_layers", "attention_head_dim", "num_attention_heads"),
            *("num_key_value_heads", "intermediate_size", "timestep_embed_dim"),
            *("text_hidden_dim", "num_text_layers", "text_num_attention_heads"),
            *("text_num_key_value_heads", "text_intermediate_size"),
        )
        self.check_integers("num_layerwise_text_blocks", "num_refiner_text_blocks", least=0)
        self.check_rope(3)
        if self.timestep_embed_dim % 2:
            raise ValueError(f"timestep_embed_dim {self.timestep_embed_dim} must be even")
        for multiple, of in (
            ("num_attention_heads", "num_key_value_heads"),
            ("text_num_attention_heads", "text_num_key_value_heads"),
            ("text_hidden_dim", "text_num_attention_heads"),
        ):
            if getattr(self, multiple) % getattr(self, of):
                raise ValueError(
                    f"{multiple} {getattr(self, multiple)} must be a multiple of {of} "
                    f"{getattr(self, of)}"
                )
