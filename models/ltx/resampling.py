"""Resampling filters for waveforms, applied per channel.

Source: Lee et al. 2022 (BigVGAN), section 3; diffusers pipelines/ltx2/vocoder.py.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.ltx.vocoder_config import VocoderConfig

Signal = Float[Array, "batch _samples channels"]
Taps = Float[Array | np.ndarray, " taps"]

ROLLOFF = 0.99
"""Fraction of the frequencies that resampling preserves."""
LOBES = 6
"""Zero crossings of the sinc on each side."""


class AntialiasedActivation(nnx.Module):
    """Activation applied at a higher sample rate, between upsampling and downsampling filters.

    The filters are stored in the checkpoint.
    """

    def __init__(self, activation: Any, config: VocoderConfig, param_dtype: DTypeLike) -> None:
        self.activation, self.ratio = activation, config.antialias_ratio
        self.up, self.down = (
            nnx.Param(
                jnp.zeros((1, 1, config.antialias_kernel_size), param_dtype), axes=(None,) * 3
            )
            for _ in range(2)
        )

    def __call__(self, x: Signal) -> Signal:
        """Upsample a signal, apply the activation, and downsample."""
        up, down = (filters[...].reshape(-1).astype(x.dtype) for filters in (self.up, self.down))
        repeats = len(up) // self.ratio - 1
        spare = len(up) - self.ratio
        left, right = (repeats * self.ratio + (spare + more) // 2 for more in (0, 1))
        x = self.activation(_upsampled(x, up, self.ratio, repeats, (left, right)))
        before, after = (len(down) - 1) // 2, len(down) // 2
        return _filtered(_repeated(x, before, after), down, strides=self.ratio)


def resampled(x: Signal, ratio: int) -> Signal:
    """Upsample a signal by `ratio` with a Hann-windowed sinc."""
    width = math.ceil(LOBES / ROLLOFF)
    taps = _hann_sinc(ratio, width).astype(x.dtype)
    return _upsampled(x, taps, ratio, width, (2 * width * ratio, len(taps) - ratio))


def _hann_sinc(ratio: int, width: int) -> Taps:
    times = (np.arange(2 * width * ratio + 1) / ratio - width) * ROLLOFF
    window = np.cos(np.clip(times, -LOBES, LOBES) * np.pi / LOBES / 2) ** 2
    taps: np.ndarray = np.sinc(times) * window * ROLLOFF / ratio
    return taps


def _upsampled(x: Signal, taps: Taps, ratio: int, repeats: int, cut: tuple[int, int]) -> Signal:
    """Insert zeros between a signal's samples, and filter.

    Args:
        repeats: number of copies of the first and last sample added beforehand.
        cut: number of samples removed at the beginning and at the end.
    """
    padding = (len(taps) - 1 - cut[0], len(taps) - 1 - cut[1])
    x = _repeated(x, repeats, repeats)
    return ratio * _filtered(x, taps[::-1], padding=padding, dilation=ratio)


def _filtered(
    x: Signal,
    taps: Taps,
    *,
    strides: int = 1,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
) -> Signal:
    channels = x.shape[-1]
    return jax.lax.conv_general_dilated(
        x,
        jnp.broadcast_to(taps[:, None, None], (len(taps), 1, channels)),
        window_strides=(strides,),
        padding=(padding,),
        lhs_dilation=(dilation,),
        dimension_numbers=("NTC", "TIO", "NTC"),
        feature_group_count=channels,
    )


def _repeated(x: Signal, before: int, after: int) -> Signal:
    """Pad a signal with copies of its first and last sample."""
    return jnp.pad(x, ((0, 0), (before, after), (0, 0)), mode="edge")
