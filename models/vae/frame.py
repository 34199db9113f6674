"""Autoencoder of single frames with alpha: diffusers' AutoencoderKLQwenImage21, channels last.

It is Wan 2.2's video autoencoder with kernels of one frame, and without patches. A frame is the
first of a video: where frames are halved or doubled, the shortcuts still count them.

Source: diffusers' autoencoder_kl_qwenimage21.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from flax import nnx

from models.checkpoint.key_mapping import Renames
from models.nn.attention.attention import CrossAttention
from models.nn.layers.parameterised import Conv, conv, linear
from models.vae import video_key_mapping
from models.vae.sharded import split_image
from models.vae.video import Pass, VideoAutoencoder, factors_of
from models.vae.video_blocks import FeatureCache, FrameAttention, Frames, RmsNorm, run
from models.vae.video_config import VideoVaeConfig
from models.vae.video_resample import Downsample, Upsample, average_down, repeat_up

RENAMES: Renames = ((r".+\.time_conv\.(?:weight|bias)", ""), *video_key_mapping.RENAMES)
"""Keys in diffusers' layout → paths; convolutions in time have no effect on single frames."""

_MEAN = (
    *(0.5126, 0.7721, -0.0631, 1.3506, -0.7855, -2.1025, -0.3458, 1.3722),
    *(1.8873, -1.7177, -0.6510, 0.2732, 0.7562, -0.6163, -1.0277, 3.8363),
    *(2.0210, 0.0472, 0.9320, 2.0087, 2.4954, -0.1391, -1.4249, 1.8464),
    *(-0.5236, 1.2826, 3.7046, -1.3035, 2.7286, -1.4518, -1.9036, -1.9955),
    *(-0.0342, -1.0265, -0.7636, 3.0555, 0.0746, -3.0751, -0.1076, 1.7376),
    *(-1.0914, -1.9435, -0.2784, -1.3680, 0.4809, -0.4433, 0.3764, 0.5729),
    *(-2.0595, 1.0960, -1.3260, -2.0211, -5.0179, 0.5275, 4.0162, 1.8505),
    *(0.3026, 1.9373, 1.4937, 0.2632, 0.5547, -1.7121, -0.1562, 0.0304),
)
_STD = (
    *(3.2001, 3.2936, 3.4321, 3.0091, 3.1061, 4.0379, 4.0705, 3.7910),
    *(3.0785, 3.6500, 3.9308, 3.0904, 2.8778, 3.7675, 3.7320, 5.0756),
    *(3.2864, 4.0397, 3.1317, 4.0443, 2.9249, 3.9454, 3.0988, 4.2489),
    *(3.4896, 3.8513, 3.9323, 3.4719, 3.7498, 4.2830, 3.5694, 4.2467),
    *(3.9037, 3.2947, 5.0770, 3.5075, 3.2700, 3.4767, 2.8063, 5.1125),
    *(3.5327, 4.7833, 3.1286, 4.1819, 3.8527, 3.8312, 3.5605, 4.3875),
    *(3.9624, 4.0168, 3.5643, 4.0550, 5.5614, 4.2963, 4.4080, 3.4959),
    *(3.8747, 3.7608, 3.5735, 3.1490, 3.7662, 3.6746, 3.4563, 3.8161),
)


@dataclass(frozen=True)
class FrameVaeConfig(VideoVaeConfig):
    """Fields of diffusers' AutoencoderKLQwenImage21 config, with its defaults.

    Raises:
        ValueError: a value that no such network can have; names the key and the rule.
    """

    decoder_base_dim: int | None = 144
    z_dim: int = 64
    dim_mult: tuple[int, ...] = (1, 2, 4, 8, 8)
    temperal_downsample: tuple[bool, ...] = (False, True, True, True)
    latents_mean: tuple[float, ...] = _MEAN
    latents_std: tuple[float, ...] = _STD
    is_residual: bool = True
    in_channels: int = 4
    out_channels: int = 4
    """Channels of the image: colours and alpha."""
    scale_factor_temporal: int = 8
    scale_factor_spatial: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_residual or self.attn_scales or self.patch != 1:
            raise ValueError(
                "is_residual must be true, attn_scales empty, and patch_size null: no other "
                "AutoencoderKLQwenImage21 is served"
            )


class FrameAutoencoder(VideoAutoencoder):
    """Autoencoder of single frames and latents, [batch, 1, height, width, channels]."""

    @staticmethod
    def make_encoder(config: VideoVaeConfig, **make: Any) -> Pass:
        """Build the encoder from frames to moments."""
        levels = _levels(config.encoder_widths, config.downsamples)
        blocks = [partial(ShrinkingBlock, depth=config.num_res_blocks, **level) for level in levels]
        return FrameEncoder(config, blocks, **make)

    @staticmethod
    def make_decoder(config: VideoVaeConfig, **make: Any) -> Pass:
        """Build the decoder from latents to frames."""
        levels = _levels(config.decoder_widths, config.upsamples)
        depth = config.num_res_blocks + 1
        blocks = [partial(GrowingBlock, depth=depth, **level) for level in levels]
        return FrameDecoder(config, blocks, **make)


class FrameEncoder(nnx.Module):
    """Encoder from frames to moments [batch, 1, h, w, 2 · latent]."""

    def __init__(
        self,
        config: VideoVaeConfig,
        blocks: Sequence[Callable[..., nnx.Module]],
        *,
        attention: CrossAttention,
        **make: Any,
    ) -> None:
        widths = config.encoder_widths
        self.conv_in = same_conv(config.in_channels, widths[0], **make)
        self.down_blocks = nnx.List(block(**make) for block in blocks)
        self.mid_block = FrameMidBlock(widths[-1], attention=attention, **make)
        self.norm_out = RmsNorm(widths[-1], 3, **make)
        self.conv_out = same_conv(widths[-1], 2 * config.z_dim, **make)

    def __call__(self, frames: Frames, cache: FeatureCache) -> Frames:
        """Encode frames to moments."""
        x = run(self.down_blocks, self.conv_in(frames), cache)
        return self.conv_out(nnx.silu(self.norm_out(self.mid_block(x, cache))))


class FrameDecoder(nnx.Module):
    """Decoder from latents to frames, not clipped."""

    def __init__(
        self,
        config: VideoVaeConfig,
        blocks: Sequence[Callable[..., nnx.Module]],
        *,
        attention: CrossAttention,
        **make: Any,
    ) -> None:
        widths = config.decoder_widths
        self.conv_in = same_conv(config.z_dim, widths[0], **make)
        self.mid_block = FrameMidBlock(widths[0], attention=attention, **make)
        self.up_blocks = nnx.List(block(**make) for block in blocks)
        self.norm_out = RmsNorm(widths[-1], 3, **make)
        self.conv_out = same_conv(widths[-1], config.out_channels, **make)

    def __call__(self, latents: Frames, cache: FeatureCache) -> Frames:
        """Decode latents to frames."""
        x = run(self.up_blocks, self.mid_block(self.conv_in(latents), cache), cache)
        return self.conv_out(nnx.silu(self.norm_out(x)))


class FrameResidualBlock(nnx.Module):
    """Residual block x + conv(silu(norm(conv(silu(norm(x)))))), as of a video's first frame."""

    def __init__(self, in_width: int, width: int, **make: Any) -> None:
        self.norm1 = RmsNorm(in_width, 3, **make)
        self.conv1 = same_conv(in_width, width, **make)
        self.norm2 = RmsNorm(width, 3, **make)
        self.conv2 = same_conv(width, width, **make)
        self.conv_shortcut = (
            linear(in_width, width, ("conv_in", "conv_out"), **make) if in_width != width else None
        )

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Apply both convolutions to a frame, and add the input."""
        hidden = self.conv1(nnx.silu(self.norm1(x)))
        hidden = self.conv2(nnx.silu(self.norm2(hidden)))
        return split_image(hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x)))


class FrameMidBlock(nnx.Module):
    """Middle block of an autoencoder: two residual blocks with attention between them."""

    def __init__(self, width: int, *, attention: CrossAttention, **make: Any) -> None:
        self.resnets = nnx.List(FrameResidualBlock(width, width, **make) for _ in range(2))
        self.attention = FrameAttention(width, attention=attention, **make)

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Apply the blocks of the lowest resolution."""
        return self.resnets[1](self.attention(self.resnets[0](x, cache), cache), cache)


class ShrinkingBlock(nnx.Module):
    """Residual blocks, then halved size, plus a shortcut of means.

    Args:
        in_time: whether the shortcut also halves frames; None: the size is not halved either.
    """

    def __init__(
        self, in_width: int, width: int, depth: int, *, in_time: bool | None, **make: Any
    ) -> None:
        self.resnets = _resnets(in_width, width, depth, **make)
        self.resample = None if in_time is None else Downsample(width, in_time=False, **make)
        self.factors = factors_of(in_time)

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Halve the size, unless this is the last block."""
        hidden = run(self.resnets, x, cache)
        if self.resample is not None:
            hidden = self.resample(hidden, cache)
        return split_image(hidden + average_down(x, hidden.shape[-1], self.factors))


class GrowingBlock(nnx.Module):
    """Residual blocks, then doubled size, plus a shortcut of the repeated input.

    Args:
        in_time: whether the shortcut also doubles frames; None: the size is not doubled either.
    """

    def __init__(
        self, in_width: int, width: int, depth: int, *, in_time: bool | None, **make: Any
    ) -> None:
        self.resnets = _resnets(in_width, width, depth, **make)
        self.resample = None if in_time is None else Upsample(width, width, in_time=False, **make)
        self.factors = factors_of(in_time)

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Double the size, unless this is the last block."""
        hidden = run(self.resnets, x, cache)
        if self.resample is None:
            return hidden
        hidden = self.resample(hidden, cache)
        # the first frame is not doubled: only its last repetition is used
        return split_image(hidden + repeat_up(x, hidden.shape[-1], self.factors)[:, -1:])


def same_conv(in_width: int, width: int, **make: Any) -> Conv:
    """Build a 3 x 3 convolution of each frame, padded to keep the size."""
    return conv(in_width, width, (3, 3), padding=((1, 1), (1, 1)), **make)


def _levels(widths: tuple[int, ...], in_time: tuple[bool, ...]) -> list[dict[str, Any]]:
    """Return the channels and resampling of each block; the last one is not resampled."""
    return [
        {"in_width": in_width, "width": width, "in_time": halved}
        for (in_width, width), halved in zip(pairwise(widths), (*in_time, None), strict=True)
    ]


def _resnets(in_width: int, width: int, depth: int, **make: Any) -> nnx.List[nnx.Module]:
    return nnx.List(
        FrameResidualBlock(width if i else in_width, width, **make) for i in range(depth)
    )
