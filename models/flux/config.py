"""Flux transformer config (`transformer/config.json`), with validation."""

from __future__ import annotations

from dataclasses import dataclass

from models.checkpoint.config_fields import HeadedConfig


@dataclass(frozen=True)
class FluxConfig(HeadedConfig):
    """Fields of diffusers' FluxTransformer2DModel config, with its defaults (FLUX.1-dev's)."""

    in_channels: int = 64
    """Channels of a token: a 2 x 2 patch of latents, plus concatenated image channels, if any."""
    num_layers: int = 19
    """Number of double blocks: image and text in separate streams with joint attention."""
    num_single_layers: int = 38
    """Number of single blocks: image and text in one stream."""
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    """Width of T5's embeddings."""
    pooled_projection_dim: int = 768
    """Width of CLIP's pooled embedding."""
    guidance_embeds: bool = False
    """Whether the guidance scale is an input of the network (distilled guidance: dev)."""
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)
    """Head dimensions rotated by index, row and column."""
    patch_size: int = 1
    out_channels: int | None = None
    """Channels of a token's velocity: four times the latent channels; None: `in_channels`."""

    def __post_init__(self) -> None:
        self.check_integers("num_layers", "num_single_layers", least=0)
        self.check_integers(
            "in_channels",
            "attention_head_dim",
            "num_attention_heads",
            "joint_attention_dim",
            "pooled_projection_dim",
        )
        if self.patch_size != 1:
            raise ValueError(f"patch_size {self.patch_size}: Flux packs its latents, it must be 1")
        for name, channels in (("in_channels", self.in_channels), ("out_channels", self.velocity)):
            if type(channels) is not int or channels < 1 or channels % 4:
                raise ValueError(f"{name} {channels!r} must be four times a whole number")
        self.check_rope(3)

    @property
    def velocity(self) -> int:
        """Channels of a token's velocity."""
        return self.in_channels if self.out_channels is None else self.out_channels

    @property
    def latent_channels(self) -> int:
        """Channels of the VAE's latents; a token packs 2 × 2 latents."""
        return self.velocity // 4
