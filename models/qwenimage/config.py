"""Qwen-Image transformer config (`transformer/config.json`), with validation."""

from __future__ import annotations

from dataclasses import dataclass

from models.checkpoint.config_fields import HeadedConfig
from models.vae.patches import PATCH

_UNSERVED = {
    "guidance_embeds": "a distilled guidance",
    "use_additional_t_cond": "Layered",
    "use_layer3d_rope": "Layered",
}
"""Fields that enable unsupported parts → the variant that has them."""


@dataclass(frozen=True)
class QwenImageConfig(HeadedConfig):
    """Fields of diffusers' QwenImageTransformer2DModel config, with its defaults."""

    WITHOUT_EFFECT = frozenset({"pooled_projection_dim"})

    patch_size: int = 2
    in_channels: int = 64
    """Channels of a token: a patch of latents."""
    out_channels: int = 16
    """Channels of the latents."""
    num_layers: int = 60
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 3584
    """Width of the text encoder's features."""
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)
    """Head dimensions rotated by image, row and column."""
    zero_cond_t: bool = False
    """Whether references have timestep 0, as in Edit 2511."""
    use_additional_t_cond: bool = False
    use_layer3d_rope: bool = False

    def __post_init__(self) -> None:
        self.check_integers(
            *("in_channels", "out_channels", "num_layers"),
            *("attention_head_dim", "num_attention_heads", "joint_attention_dim"),
        )
        for name, kind in _UNSERVED.items():
            if getattr(self, name):
                raise ValueError(f"{name} must be false: Qwen-Image with {kind} is not served")
        if self.patch_size != PATCH:
            raise ValueError(f"patch_size {self.patch_size} must be {PATCH}")
        if self.in_channels != PATCH**2 * self.out_channels:
            raise ValueError(
                f"in_channels {self.in_channels} must be a patch of out_channels "
                f"{self.out_channels}, {PATCH**2} times as many"
            )
        self.check_rope(3)


@dataclass(frozen=True)
class QwenImageControlNetConfig(QwenImageConfig):
    """Fields of diffusers' QwenImageControlNetModel config, with its defaults."""

    extra_condition_channels: int = 0
    """Channels of a mask, in addition to the control image's latents."""

    def __post_init__(self) -> None:
        if self.extra_condition_channels:
            raise ValueError(
                f"extra_condition_channels {self.extra_condition_channels}: a ControlNet that also "
                "reads a mask (Inpainting) is not served; choose one that reads only an image, "
                "such as InstantX/Qwen-Image-ControlNet-Union"
            )
        super().__post_init__()
