"""Vocoders of LTX-2: log mel spectrograms to waveforms.

Source: Kong et al. 2020 (HiFi-GAN), section 2.2; Lee et al. 2022 (BigVGAN), section 3, for
anti-aliased periodic activations; diffusers pipelines/ltx2/vocoder.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.ltx.resampling import AntialiasedActivation, resampled
from models.ltx.vocoder_config import ExtendedVocoderConfig, VocoderConfig
from models.nn.layers.parameterised import Kinds, conv, linear

Signal = Float[Array, "batch _samples _channels"]
Sound = Float[Array, "batch samples channels"]

END_WINDOW = 7
LAST_SLOPE = 0.01
"""Negative slope of the last leaky ReLU, independent of the config."""
PERIOD_EPSILON = 1e-9
QUIETEST = 1e-5
"""Minimum magnitude of a mel bin before the logarithm."""


class Leaky(nnx.Module):
    """Leaky ReLU activation, as a module."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __call__(self, x: Signal) -> Signal:
        """Apply leaky ReLU to a signal."""
        return jax.nn.leaky_relu(x, self.slope)


class Snake(nnx.Module):
    """Periodic activation x + sin²(α x) / β, with α and β per channel, stored as logarithms.

    Without β, α is used. Source: Ziyin et al. 2020 (Snake); Lee et al. 2022 (BigVGAN), for a
    separate β.
    """

    def __init__(self, width: int, *, beta: bool, param_dtype: DTypeLike) -> None:
        zeros = jnp.zeros(width, param_dtype)
        self.alpha = nnx.Param(zeros, axes=(None,))
        self.beta = nnx.Param(zeros, axes=(None,)) if beta else None

    def __call__(self, x: Signal) -> Signal:
        """Apply the Snake activation to a signal."""
        alpha = jnp.exp(self.alpha[...].astype(x.dtype))
        beta = alpha if self.beta is None else jnp.exp(self.beta[...].astype(x.dtype))
        return x + jnp.square(jnp.sin(alpha * x)) / (beta + PERIOD_EPSILON)


class Residuals(nnx.Module):
    """Residual stack of a vocoder: pairs of convolutions, the first of each pair dilated."""

    def __init__(
        self,
        width: int,
        window: int,
        dilations: tuple[int, ...],
        activation: Any,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        def layer(dilation: int = 1) -> Any:
            total = dilation * (window - 1)
            padding = ((total // 2, total - total // 2),)
            return conv(
                width,
                width,
                (window,),
                padding=padding,
                dilation=dilation,
                rngs=rngs,
                param_dtype=param_dtype,
            )

        self.first = nnx.List([layer(dilation) for dilation in dilations])
        self.second = nnx.List([layer() for _ in dilations])
        self.before_first, self.before_second = (
            nnx.List([activation(width) for _ in dilations]) for _ in range(2)
        )

    def __call__(self, x: Signal) -> Signal:
        """Apply the pairs of convolutions to a signal in sequence."""
        pairs = zip(self.before_first, self.first, self.before_second, self.second, strict=True)
        for before_first, first, before_second, second in pairs:
            x = x + second(before_second(first(before_first(x))))
        return x


class Upsampling(nnx.Module):
    """Transposed convolution that upsamples a signal.

    Args:
        window: number of output samples that each input sample affects.
        factor: output samples per input sample.
    """

    def __init__(
        self,
        width_in: int,
        width: int,
        window: int,
        factor: int,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        shape = (window, width, width_in)
        kernel = nnx.initializers.lecun_normal(1, 2)(rngs.params(), shape, param_dtype)
        self.kernel = nnx.Param(kernel, axes=(None, "conv_out", "conv_in"))
        self.bias = nnx.Param(jnp.zeros(width, param_dtype), axes=("conv_out",))
        self.factor = factor

    def __call__(self, x: Signal) -> Signal:
        """Upsample a signal by the transposed convolution."""
        window = self.kernel.shape[0]
        side = window - 1 - (window - self.factor) // 2
        out = jax.lax.conv_general_dilated(
            x,
            self.kernel[...][::-1].astype(x.dtype),
            window_strides=(1,),
            padding=((side, side),),
            lhs_dilation=(self.factor,),
            dimension_numbers=("NTC", "TOI", "NTC"),
        )
        return out + self.bias[...].astype(x.dtype)


class VocoderLevel(nnx.Module):
    """Vocoder level: upsampling, then the mean of several stacks of convolutions."""

    def __init__(
        self, config: VocoderConfig, number: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width = config.hidden_channels // 2 ** (number + 1)
        window, factor = config.upsample_kernel_sizes[number], config.upsample_factors[number]
        self.up = Upsampling(2 * width, width, window, factor, **kinds)
        activation = partial(_activation, config, param_dtype=param_dtype)
        self.stacks = nnx.List(
            [
                Residuals(width, size, dilations, activation, **kinds)
                for size, dilations in zip(
                    config.resnet_kernel_sizes, config.resnet_dilations, strict=True
                )
            ]
        )
        leaky = config.act_fn == "leaky_relu"
        self.before = Leaky(config.leaky_relu_negative_slope) if leaky else None

    def __call__(self, x: Signal) -> Signal:
        """Upsample, and average the outputs of the stacks."""
        x = self.up(x if self.before is None else self.before(x))
        return jnp.stack([stack(x) for stack in self.stacks]).mean(axis=0)


class Vocoder(nnx.Module):
    """Vocoder from log mel spectrograms to waveforms (LTX-2.0's; two of them in LTX-2.3)."""

    def __init__(
        self, config: VocoderConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        padding = ((END_WINDOW // 2,) * 2,)
        self.enter = conv(
            config.in_channels, config.hidden_channels, (END_WINDOW,), padding=padding, **kinds
        )
        self.levels = nnx.List(
            [
                VocoderLevel(config, number, **kinds)
                for number in range(len(config.upsample_factors))
            ]
        )
        width = config.hidden_channels // 2 ** len(config.upsample_factors)
        self.before_leave: Any = (
            Leaky(LAST_SLOPE)
            if config.act_fn == "leaky_relu"
            else AntialiasedActivation(
                Snake(width, beta=True, param_dtype=param_dtype), config, param_dtype
            )
        )
        self.leave = conv(
            width,
            config.out_channels,
            (END_WINDOW,),
            padding=padding,
            use_bias=config.final_bias,
            **kinds,
        )

    def __call__(self, mel: Float[Array, "batch frames bins_of_all"]) -> Sound:
        """Decode a log mel spectrogram to a waveform.

        A frame has its channels in order, each with its bins.
        """
        x = self.enter(mel)
        for level in self.levels:
            x = level(x)
        x = self.leave(self.before_leave(x))
        if self.config.final_act_fn == "tanh":
            return jnp.tanh(x)
        return jnp.clip(x, -1, 1) if self.config.final_act_fn == "clamp" else x


class ExtendedVocoder(nnx.Module):
    """Vocoder, and a second one that adds high frequencies to its output (LTX-2.3)."""

    def __init__(
        self,
        config: ExtendedVocoderConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        self.vocoder = Vocoder(config.vocoder, **kinds)
        self.extension = Vocoder(config.extension, **kinds)
        frequencies = config.filter_length // 2 + 1
        self.fourier = conv(
            1,
            2 * frequencies,
            (config.filter_length,),
            strides=config.hop_length,
            padding=((max(0, config.window_length - config.hop_length), 0),),
            use_bias=False,
            axes=(None, None),
            **kinds,
        )
        """Fourier basis of a window: real parts of the frequencies, then imaginary parts."""
        self.mel = linear(
            frequencies, config.num_mel_channels, (None, None), use_bias=False, **kinds
        )

    def __call__(self, mel: Float[Array, "batch frames bins_of_all"]) -> Sound:
        """Decode a log mel spectrogram to a waveform at the higher rate, in [-1, 1]."""
        low = self.vocoder(mel)
        samples = low.shape[1]
        low = jnp.pad(low, ((0, 0), (0, -samples % self.config.hop_length), (0, 0)))
        high = self.extension(self._log_mel(low))
        sound = jnp.clip(high + resampled(low, self.config.ratio), -1, 1)
        return sound[:, : samples * self.config.ratio]

    def _log_mel(self, x: Signal) -> Float[Array, "batch frames bins_of_all"]:
        """Return the log mel spectrogram of each channel, with causal windows."""
        batch, samples, channels = x.shape
        mono = x.swapaxes(1, 2).reshape(batch * channels, samples, 1)
        real, imaginary = jnp.split(self.fourier(mono), 2, axis=-1)
        magnitude = jnp.sqrt(jnp.square(real) + jnp.square(imaginary))
        mel = jnp.log(jnp.maximum(self.mel(magnitude), QUIETEST))
        mel = mel.reshape(batch, channels, *mel.shape[1:]).swapaxes(1, 2)
        return mel.reshape(batch, mel.shape[1], -1)


def _activation(config: VocoderConfig, width: int, *, param_dtype: DTypeLike) -> Any:
    if config.act_fn == "leaky_relu":
        return Leaky(config.leaky_relu_negative_slope)
    snake = Snake(width, beta=config.act_fn == "snakebeta", param_dtype=param_dtype)
    return AntialiasedActivation(snake, config, param_dtype) if config.antialias else snake


def vocoder_of(
    config: VocoderConfig | ExtendedVocoderConfig,
    *,
    rngs: nnx.Rngs,
    param_dtype: DTypeLike = jnp.float32,
) -> Vocoder | ExtendedVocoder:
    """Build the vocoder for an LTX-2.0 or LTX-2.3 config."""
    kind: Any = ExtendedVocoder if isinstance(config, ExtendedVocoderConfig) else Vocoder
    vocoder: Vocoder | ExtendedVocoder = kind(config, rngs=rngs, param_dtype=param_dtype)
    return vocoder
