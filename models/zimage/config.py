"""Z-Image transformer config (`transformer/config.json`), with validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from jax import Array

from models.checkpoint.config_fields import TransformerConfig
from models.vae.patches import PATCH

MULTIPLE = 32
"""Captions and images are padded to a multiple of this, each with a learned token."""
MAX_CONDITION = 256
"""Maximum width of the vector that modulates the blocks."""


Count = TypeVar("Count", int, Array)


def filled(tokens: Count) -> Count:
    """Return the number of tokens after padding to `MULTIPLE`."""
    return -(-tokens // MULTIPLE) * MULTIPLE


@dataclass(frozen=True)
class ZImageConfig(TransformerConfig):
    """Fields of diffusers' ZImageTransformer2DModel config, with its defaults."""

    all_patch_size: tuple[int, ...] = (2,)
    all_f_patch_size: tuple[int, ...] = (1,)
    in_channels: int = 16
    """Channels of the latents."""
    dim: int = 3840
    n_layers: int = 30
    n_refiner_layers: int = 2
    """Separate layers for captions and for images, before the joint layers."""
    n_heads: int = 30
    n_kv_heads: int = 30
    norm_eps: float = 1e-5
    qk_norm: bool = True
    cap_feat_dim: int = 2560
    """Width of the text encoder's features."""
    siglip_feat_dim: int | None = None
    rope_theta: float = 256.0
    t_scale: float = 1000.0
    axes_dims: tuple[int, ...] = (32, 48, 48)
    """Head dimensions rotated by sequence position, row and column."""
    axes_lens: tuple[int, ...] = (1024, 512, 512)
    """Number of positions along each of these axes."""

    def __post_init__(self) -> None:
        self.check_integers("in_channels", "dim", "n_layers", "n_heads", "cap_feat_dim")
        self.check_integers("n_refiner_layers", least=0)
        if (self.all_patch_size, self.all_f_patch_size) != ((PATCH,), (1,)):
            raise ValueError(
                f"all_patch_size {self.all_patch_size} and all_f_patch_size "
                f"{self.all_f_patch_size} must be ({PATCH},) and (1,)"
            )
        if self.n_kv_heads != self.n_heads:
            raise ValueError(f"n_kv_heads {self.n_kv_heads} must be n_heads {self.n_heads}")
        if self.siglip_feat_dim is not None:
            raise ValueError("siglip_feat_dim: Z-Image that reads images (Omni) is not served")
        if len(self.axes_lens) != 3:
            raise ValueError(f"axes_lens {self.axes_lens} must be three lengths")
        self.check_axes("axes_dims", 3, "dim / n_heads", self.dim / self.n_heads)

    @property
    def inner(self) -> int:
        """Hidden features of a feed-forward."""
        return int(self.dim / 3 * 8)

    @property
    def condition(self) -> int:
        """Width of the vector that modulates the transformer's blocks."""
        return min(self.dim, MAX_CONDITION)
