"""Audio autoencoder of LTX-2: decodes latents to mel spectrograms with causal convolutions.

Source: HaCohen et al. 2026 (LTX-2), section 3.1; diffusers autoencoder_kl_ltx2_audio.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.ltx.audio_vae_config import COMPRESSION, LTX2AudioVaeConfig
from models.nn.layers.norms import rms
from models.nn.layers.parameterised import Conv, Kinds, conv, linear

Spectrogram = Float[Array, "batch _frames _bins _channels"]

EPSILON = 1e-6
"""Epsilon of the norms; the same in every LTX-2."""
WINDOW = (3, 3)
PADDING = ((2, 0), (1, 1))
"""Zero padding of frames and bins; causal over frames."""


def _conv(width_in: int, width: int, kinds: Kinds) -> Conv:
    return conv(width_in, width, WINDOW, padding=PADDING, **kinds)


class MelBlock(nnx.Module):
    """Residual block: two convolutions, each after a norm and SiLU, plus a shortcut."""

    def __init__(
        self, width_in: int, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.first = _conv(width_in, width, kinds)
        self.second = _conv(width, width, kinds)
        axes = ("conv_in", "conv_out")
        self.around = None if width_in == width else linear(width_in, width, axes, **kinds)

    def __call__(self, x: Spectrogram) -> Spectrogram:
        """Apply the two convolutions to a spectrogram, and add the shortcut."""
        output = self.first(jax.nn.silu(rms(x, EPSILON)))
        output = self.second(jax.nn.silu(rms(output, EPSILON)))
        return output + (x if self.around is None else self.around(x))


class MelLevel(nnx.Module):
    """Decoder level: residual blocks, then optionally doubled frames (less one) and bins."""

    def __init__(
        self,
        width_in: int,
        width: int,
        blocks: int,
        *,
        doubles: bool,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        widths = (width_in, *(width,) * (blocks - 1))
        self.blocks = nnx.List([MelBlock(before, width, **kinds) for before in widths])
        self.up = _conv(width, width, kinds) if doubles else None

    def __call__(self, x: Spectrogram) -> Spectrogram:
        """Apply the residual blocks, then upsample frames and bins."""
        for block in self.blocks:
            x = block(x)
        if self.up is None:
            return x
        repeated = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
        return self.up(repeated)[:, 1:]


class LTX2AudioDecoder(nnx.Module):
    """Decoder of normalized audio latents to log mel spectrograms."""

    def __init__(
        self, config: LTX2AudioVaeConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        widths, blocks = config.widths, config.num_res_blocks + 1
        deepest = widths[-1]
        self.enter = _conv(config.latent_channels, deepest, kinds)
        self.mid = nnx.List([MelBlock(deepest, deepest, **kinds) for _ in range(2)])
        self.levels = nnx.List(
            [
                MelLevel(before, width, blocks, doubles=number > 0, **kinds)
                for number, (width, before) in enumerate(
                    zip(widths, (*widths[1:], deepest), strict=True)
                )
            ]
        )
        """Levels in the checkpoint's order; the last one runs first."""
        self.leave = _conv(widths[0], config.output_channels, kinds)
        self.latents_mean, self.latents_std = (
            nnx.Param(jnp.full(config.features, value, param_dtype), axes=(None,))
            for value in (0, 1)
        )

    def __call__(
        self, latents: Float[Array, "batch tokens features"]
    ) -> Float[Array, "batch frames bins channels"]:
        """Decode audio latents to a log mel spectrogram.

        A token has its channels in order, each with its bins.

        Returns:
            `COMPRESSION` frames per token, less three: the first token is a single frame.
        """
        x = latents * self.latents_std[...] + self.latents_mean[...]
        x = x.reshape(*x.shape[:2], -1, self.config.latent_bins).swapaxes(2, 3)
        x = self.enter(x)
        for part in (*self.mid, *reversed(self.levels)):
            x = part(x)
        x = self.leave(jax.nn.silu(rms(x, EPSILON)))
        frames = COMPRESSION * (latents.shape[1] - 1) + 1
        return _fitted(x, frames, self.config.mel_bins)


def _fitted(x: Spectrogram, frames: int, bins: int) -> Spectrogram:
    """Crop a spectrogram's frames and bins at the end, or pad them with zeros."""
    x = x[:, :frames, :bins]
    missing = (frames - x.shape[1], bins - x.shape[2])
    return jnp.pad(x, ((0, 0), *((0, count) for count in missing), (0, 0)))
