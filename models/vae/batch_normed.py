"""Image autoencoder of FLUX.2: an AutoencoderKL with packed latents normalized by channel.

Source: diffusers autoencoder_kl_flux2.py, AutoencoderKLFlux2, and its pipelines for the use of the
statistics; Ioffe and Szegedy 2015, algorithm 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import shapes_of
from models.nn.attention.attention import CrossAttention
from models.vae import key_mapping
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.original_keys import vae_renames
from models.vae.sharded import attend_by_positions

_FIRST_CONVOLUTION = re.compile(
    r"(?:.+\.)?decoder\.(?:up\.(\d+)\.block|up_blocks\.(\d+)\.resnets)\.0\.conv1\.weight"
)
"""Keys of the first convolution of a decoder's level, by the authors' names or diffusers'."""
DOWN, UP = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
PATCH = (2, 2)
"""Latents that a token packs: the only size in diffusers' pipelines."""


@dataclass(frozen=True)
class BatchNormedVaeConfig(VaeConfig):
    """Config of diffusers' AutoencoderKLFlux2, with its defaults.

    Raises:
        ValueError: as of `VaeConfig`; or tokens of other patches.
    """

    down_block_types: tuple[str, ...] = DOWN
    up_block_types: tuple[str, ...] = UP
    block_out_channels: tuple[int, ...] = (128, 256, 512, 512)
    decoder_block_out_channels: tuple[int, ...] | None = None
    """Widths of the decoder; None: those of the encoder."""
    layers_per_block: int = 2
    latent_channels: int = 32
    sample_size: int = 1024
    scaling_factor: float = 1.0
    batch_norm_eps: float = 1e-4
    """Added to the variances of the packed latents."""
    patch_size: tuple[int, ...] = PATCH

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patch_size != PATCH:
            raise ValueError(f"patch_size {self.patch_size} must be {PATCH}")
        _ = self.of_decoder  # checks its widths

    @property
    def of_decoder(self) -> VaeConfig:
        """Config of the VAE's decoder."""
        widths = self.decoder_block_out_channels
        if widths is None:
            return self
        return replace(self, block_out_channels=widths, decoder_block_out_channels=None)

    @property
    def packed_channels(self) -> int:
        """Channels of a token of packed latents."""
        return PATCH[0] * PATCH[1] * self.latent_channels


def with_decoder_of(config: BatchNormedVaeConfig, files: Iterable[Path]) -> BatchNormedVaeConfig:
    """Return a VAE's config with the widths that its decoder has in the weight files.

    Files of a smaller decoder are shared without a config. Raises: CheckpointError: damaged files.
    """
    levels, widths = len(config.block_out_channels), {}
    for file in files:
        for key, shape in shapes_of(file).items():
            if match := _FIRST_CONVOLUTION.fullmatch(key):
                original, block = match.groups()
                widths[levels - 1 - int(block) if block else int(original)] = shape[0]
    if {*widths} != {*range(levels)}:
        return config
    decoder = tuple(widths[level] for level in range(levels))
    is_same = decoder == config.of_decoder.block_out_channels
    return config if is_same else replace(config, decoder_block_out_channels=decoder)


class LatentStatistics(nnx.Module):
    """Mean and variance of each channel of the packed latents, in float32."""

    def __init__(self, channels: int, epsilon: float) -> None:
        self.mean = nnx.Param(jnp.zeros((channels,), jnp.float32), axes=(None,))
        self.variance = nnx.Param(jnp.ones((channels,), jnp.float32), axes=(None,))
        self.epsilon = epsilon

    def normed(self, packed: Float[Array, "tokens packed"]) -> Float[Array, "tokens packed"]:
        """Normalize the encoder's packed latents for the denoising network, in float32."""
        return (packed.astype(jnp.float32) - self.mean[...]) / self._deviation

    def restored(self, packed: Float[Array, "tokens packed"]) -> Float[Array, "tokens packed"]:
        """Denormalize packed latents for the decoder: the inverse of `normed`."""
        return packed.astype(jnp.float32) * self._deviation + self.mean[...]

    @property
    def _deviation(self) -> Float[Array, " packed"]:
        return jnp.sqrt(self.variance[...] + self.epsilon)


class BatchNormedAutoencoder(AutoencoderKL):
    """AutoencoderKL with the statistics of its packed latents."""

    config: BatchNormedVaeConfig

    def __init__(
        self,
        config: BatchNormedVaeConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: CrossAttention = attend_by_positions,
    ) -> None:
        super().__init__(config, rngs=rngs, param_dtype=param_dtype, attention=attention)
        self.statistics = LatentStatistics(config.packed_channels, config.batch_norm_eps)


STATISTICS = (
    (r"bn\.running_mean", "statistics.mean"),
    (r"bn\.running_var", "statistics.variance"),
    (r"bn\.num_batches_tracked", ""),
)
"""Rename rules of the statistics, in diffusers' checkpoints and the authors' files."""
RENAMES: Renames = (*STATISTICS, *key_mapping.RENAMES)
"""Rename rules of the autoencoder's arrays in diffusers' checkpoints."""


def authors_renames(config: BatchNormedVaeConfig) -> Renames:
    """Return the rename rules of a VAE's keys in the authors' code, which single files use."""
    return (
        *STATISTICS,
        *layer_renames({r"(?:encoder\.)?quant_conv": "quant_conv"}),
        *layer_renames({r"(?:decoder\.)?post_quant_conv": "post_quant_conv"}),
        *vae_renames(config),
    )
