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


OWN_REFINER, SAME_LAYERS = "control_noise_refiner", "control_layers"
"""Control layers that also give residuals of the layers for images: version 2.1, and 2.0."""

Count = TypeVar("Count", int, Array)


def filled(tokens: Count) -> Count:
    """Return the number of tokens after padding to `MULTIPLE`."""
    return -(-tokens // MULTIPLE) * MULTIPLE


@dataclass(frozen=True)
class ZImageBlocksConfig(TransformerConfig):
    """Config fields that the transformer and its ControlNets both have, with their defaults."""

    all_patch_size: tuple[int, ...] = (2,)
    all_f_patch_size: tuple[int, ...] = (1,)
    dim: int = 3840
    n_refiner_layers: int = 2
    """Separate layers for captions and for images, before the joint layers."""
    n_heads: int = 30
    n_kv_heads: int = 30
    norm_eps: float = 1e-5
    qk_norm: bool = True

    def __post_init__(self) -> None:
        self.check_integers("dim", "n_heads")
        self.check_integers("n_refiner_layers", least=0)
        if (self.all_patch_size, self.all_f_patch_size) != ((PATCH,), (1,)):
            raise ValueError(
                f"all_patch_size {self.all_patch_size} and all_f_patch_size "
                f"{self.all_f_patch_size} must be ({PATCH},) and (1,)"
            )
        if self.n_kv_heads != self.n_heads:
            raise ValueError(f"n_kv_heads {self.n_kv_heads} must be n_heads {self.n_heads}")

    @property
    def inner(self) -> int:
        """Hidden features of a feed-forward."""
        return int(self.dim / 3 * 8)

    @property
    def condition(self) -> int:
        """Width of the vector that modulates the blocks."""
        return min(self.dim, MAX_CONDITION)


@dataclass(frozen=True)
class ZImageConfig(ZImageBlocksConfig):
    """Fields of diffusers' ZImageTransformer2DModel config, with its defaults."""

    in_channels: int = 16
    """Channels of the latents."""
    n_layers: int = 30
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
        super().__post_init__()
        self.check_integers("in_channels", "n_layers", "cap_feat_dim")
        if self.siglip_feat_dim is not None:
            raise ValueError("siglip_feat_dim: Z-Image that reads images (Omni) is not served")
        if len(self.axes_lens) != 3:
            raise ValueError(f"axes_lens {self.axes_lens} must be three lengths")
        self.check_axes("axes_dims", 3, "dim / n_heads", self.dim / self.n_heads)


@dataclass(frozen=True)
class ZImageControlNetConfig(ZImageBlocksConfig):
    """Fields of diffusers' ZImageControlNetModel config, with its defaults."""

    control_layers_places: tuple[int, ...] = ()
    """Numbers of the joint layers whose outputs get a residual, one per control layer."""
    control_refiner_layers_places: tuple[int, ...] | None = None
    """The same for the ControlNet's run of the transformer's layers for images."""
    control_in_dim: int = 16
    """Channels of the control image's latents; further ones are of a mask and a masked image."""
    add_control_noise_refiner: str | None = None
    """Control layers that give the residuals of the layers for images: `control_noise_refiner` or
    `control_layers`; None: these layers get none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_integers("control_in_dim")
        kinds = (None, OWN_REFINER, SAME_LAYERS)
        if self.add_control_noise_refiner not in kinds:
            raise ValueError(
                f"add_control_noise_refiner {self.add_control_noise_refiner!r} must be one of "
                f"{', '.join(map(str, kinds))}"
            )
        if self.control_layers_places[:1] != (0,):
            raise ValueError(
                f"control_layers_places {self.control_layers_places} must begin with 0"
            )

    @property
    def refiner_places(self) -> tuple[int, ...]:
        """Numbers of the layers for images that get a residual."""
        return (self.control_refiner_layers_places or ()) if self.add_control_noise_refiner else ()

    @property
    def refiner_layers(self) -> int:
        """Number of layers in the ControlNet's refiner."""
        return 0 if self.add_control_noise_refiner == SAME_LAYERS else self.n_refiner_layers
