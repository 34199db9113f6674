"""Animate transformer config: Wan's fields, and those of the face encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.wan.config import WanConfig

_SIZES = (
    "latent_channels",
    "motion_encoder_size",
    "motion_style_dim",
    "motion_dim",
    "motion_encoder_dim",
    "face_encoder_hidden_dim",
    "face_encoder_num_heads",
    "inject_face_latents_blocks",
    "motion_encoder_batch_size",
)
_CHANNELS = ((4, 512), (8, 512), (16, 512), (32, 512), (64, 256), (128, 128), (256, 64), (512, 32))
FACE_FRAMES = 4
"""Face video frames per latent frame: two convolutions of stride 2."""


@dataclass(frozen=True)
class AnimateConfig(WanConfig):
    """Fields of diffusers' WanAnimateTransformer3DModel config, with its defaults (14B's).

    Raises:
        ValueError: a value that the network does not support; names the field.
    """

    in_channels: int = 36
    """Channels of the noisy latents, the mask and the conditioning latents."""
    latent_channels: int = 16
    image_dim: int | None = 1280
    motion_encoder_channel_sizes: tuple[tuple[int, int], ...] | None = None
    """Channels at each image side in pixels; None selects the defaults."""
    motion_encoder_size: int = 512
    """Side of a face image in pixels: a power of two."""
    motion_style_dim: int = 512
    motion_dim: int = 20
    """Number of basis directions of motion."""
    motion_encoder_dim: int = 512
    face_encoder_hidden_dim: int = 1024
    face_encoder_num_heads: int = 4
    """Face tokens per latent frame, excluding a learned token that follows them."""
    inject_face_latents_blocks: int = 5
    """Blocks between two face attentions; the first follows the first block."""
    motion_encoder_batch_size: int = 8
    """Number of frames per motion encoder batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _SIZES:
            size = getattr(self, name)
            if type(size) is not int or size < 1:
                raise ValueError(f"{name} must be a positive integer, not {size!r}")
        if self.in_channels != 2 * self.latent_channels + 4:
            raise ValueError(
                f"in_channels {self.in_channels} must be 2 · latent_channels + 4 = "
                f"{2 * self.latent_channels + 4}: noisy latents, a mask and known latents"
            )
        if self.image_dim is None or self.pos_embed_seq_len is not None:
            raise ValueError(
                f"image_dim {self.image_dim}, pos_embed_seq_len {self.pos_embed_seq_len}: Animate "
                "reads one image, the character's"
            )
        if self.patch_size[0] != 1:
            raise ValueError(
                f"patch_size {self.patch_size}: only patches of one frame are served by Animate, "
                "since the character's image is one"
            )
        if self.num_layers % self.inject_face_latents_blocks:
            raise ValueError(
                f"num_layers {self.num_layers} must be a multiple of inject_face_latents_blocks "
                f"{self.inject_face_latents_blocks}"
            )
        if self.motion_dim > self.motion_encoder_dim:
            raise ValueError(
                f"motion_dim {self.motion_dim} must be at most motion_encoder_dim "
                f"{self.motion_encoder_dim}: its directions are orthogonal"
            )
        self._check_sides()

    def _check_sides(self) -> None:
        size, channels = self.motion_encoder_size, dict(self.channels)
        if size < 4 or size & (size - 1):
            raise ValueError(f"motion_encoder_size {size} must be a power of two, 4 at least")
        missing = [side for side in self.sides if side not in channels]
        if missing:
            raise ValueError(f"motion_encoder_channel_sizes must include those of sides {missing}")

    @property
    def channels(self) -> tuple[tuple[int, int], ...]:
        """Channels of the motion encoder, by image side."""
        return self.motion_encoder_channel_sizes or (*_CHANNELS, (1024, 16))

    @property
    def sides(self) -> tuple[int, ...]:
        """Image sides in the motion encoder, from the input size down to 4 pixels."""
        sides = [self.motion_encoder_size]
        while sides[-1] > 4:
            sides.append(sides[-1] // 2)
        return tuple(sides)

    @property
    def face_adapters(self) -> int:
        """Number of face attention layers."""
        return self.num_layers // self.inject_face_latents_blocks

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> AnimateConfig:
        """Parse the `transformer/config.json` of Wan Animate.

        Raises: ValueError: an unknown key or an invalid value.
        """
        key = "motion_encoder_channel_sizes"
        channels = config.get(key)
        if isinstance(channels, Mapping):
            sides = sorted((int(side), count) for side, count in channels.items())
            config = {**config, key: sides}
        parsed = super().from_dict(config)
        assert isinstance(parsed, AnimateConfig)
        return parsed
