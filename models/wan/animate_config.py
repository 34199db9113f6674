"""Config of an Animate transformer: Wan's, and its encoder of faces."""

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
"""Frames of a face that one of its tokens' frames stands for: two convolutions of stride 2."""


@dataclass(frozen=True)
class AnimateConfig(WanConfig):
    """The fields of diffusers' WanAnimateTransformer3DModel config, with its defaults (14B's).

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    in_channels: int = 36
    """Channels of the latents, and of the mask and the known latents beside them."""
    latent_channels: int = 16
    image_dim: int | None = 1280
    motion_encoder_channel_sizes: tuple[tuple[int, int], ...] | None = None
    """Channels at each side of a face's image, in pixels; None: the usual ones."""
    motion_encoder_size: int = 512
    """Side of a face's image in pixels: a power of two."""
    motion_style_dim: int = 512
    motion_dim: int = 20
    """Directions that motion is made of."""
    motion_encoder_dim: int = 512
    face_encoder_hidden_dim: int = 1024
    face_encoder_num_heads: int = 4
    """Tokens of a face in one frame of latents; a learned one comes behind them."""
    inject_face_latents_blocks: int = 5
    """Blocks from one attention to the face to the next; the first is behind the first block."""
    motion_encoder_batch_size: int = 8
    """Frames whose motion is read at once."""

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
                "sees one image, the character's"
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
            raise ValueError(f"motion_encoder_channel_sizes must say those of sides {missing}")

    @property
    def channels(self) -> tuple[tuple[int, int], ...]:
        """Side of a face's image and its channels there."""
        return self.motion_encoder_channel_sizes or (*_CHANNELS, (1024, 16))

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides of a face's image on its way through the motion encoder: down to 4 pixels."""
        sides = [self.motion_encoder_size]
        while sides[-1] > 4:
            sides.append(sides[-1] // 2)
        return tuple(sides)

    @property
    def face_adapters(self) -> int:
        """Number of attentions to the face."""
        return self.num_layers // self.inject_face_latents_blocks

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> AnimateConfig:
        """Read a checkpoint's config.

        Raises: ValueError for a key that this network does not know, or a wrong value.
        """
        key = "motion_encoder_channel_sizes"
        channels = config.get(key)
        if isinstance(channels, Mapping):
            sides = sorted((int(side), count) for side, count in channels.items())
            config = {**config, key: sides}
        made = super().from_dict(config)
        assert isinstance(made, AnimateConfig)
        return made
