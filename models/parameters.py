"""How many parameters a network has, from its config alone: arithmetic, no arrays, no tracing.

With `memory_bytes` it tells what a checkpoint's weights take on a chip before anything is loaded.
`jax.eval_shape` over the networks themselves is the judge; a test holds both together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
from jax.typing import DTypeLike

from models.flux.conditions import TIME_FEATURES
from models.flux.config import FluxConfig
from models.sdxl.config import Level, UNetConfig
from models.text.clip import ClipConfig
from models.text.t5 import T5Config
from models.text.umt5 import UMT5Config
from models.vae.config import VaeConfig
from models.vae.video_config import VideoVaeConfig
from models.vision.clip import ClipVisionConfig
from models.wan.config import WanConfig


class Count(NamedTuple):
    """Parameters of one network."""

    loaded: int
    """In the dtype that the model is loaded in."""
    float32: int = 0
    """That stay float32 whatever that dtype is."""

    @property
    def total(self) -> int:
        return self.loaded + self.float32


def memory_bytes(counts: Iterable[Count], dtype: DTypeLike) -> int:
    """What these networks' weights take, loaded in `dtype`."""
    width = np.dtype(dtype).itemsize
    return sum(width * count.loaded + 4 * count.float32 for count in counts)


@singledispatch
def parameters(config: Any) -> Count:
    """Of the network that this config shapes.

    Raises:
        TypeError: no network is known by such a config.
    """
    raise TypeError(f"no network is shaped by a {type(config).__name__}")


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def conv(inputs: int, outputs: int, window: int) -> int:
    """`window`: positions that the kernel covers."""
    return (inputs * window + 1) * outputs


@parameters.register
def _clip(config: ClipConfig) -> Count:
    width = config.hidden_size
    tables = (config.vocab_size + config.max_position_embeddings) * width
    return Count(tables + _clip_blocks(config) + 2 * width)


@parameters.register
def _clip_vision(config: ClipVisionConfig) -> Count:
    width = config.hidden_size
    patches = config.num_channels * config.patch_size**2 * width
    return Count(patches + (config.tokens + 1) * width + _clip_blocks(config) + 4 * width)


def _clip_blocks(config: ClipConfig | ClipVisionConfig) -> int:
    width, inner = config.hidden_size, config.intermediate_size
    block = 4 * linear(width, width) + linear(width, inner) + linear(inner, width) + 4 * width
    return config.num_hidden_layers * block


def projected(config: ClipConfig) -> Count:
    """Of the same tower with the projection behind it."""
    return Count(parameters(config).loaded + config.hidden_size * config.projection_dim)


@parameters.register
def _t5(config: T5Config) -> Count:
    return Count(_t5_blocks(config) + config.relative_attention_num_buckets * config.num_heads)


@parameters.register
def _umt5(config: UMT5Config) -> Count:
    biases = config.num_layers * config.relative_attention_num_buckets * config.num_heads
    return Count(_t5_blocks(config) + biases)


def _t5_blocks(config: T5Config) -> int:
    """All but the position biases."""
    width, heads = config.d_model, config.num_heads * config.d_kv
    kernels = 3 if config.feed_forward_proj.startswith("gated") else 2
    block = 4 * width * heads + kernels * width * config.d_ff + 2 * width
    return config.vocab_size * width + config.num_layers * block + width


@parameters.register
def _flux(config: FluxConfig) -> Count:
    width, head = config.width, config.attention_head_dim

    def condition(features: int) -> int:
        return linear(features, width) + linear(width, width)

    conditions = (2 if config.guidance_embeds else 1) * condition(TIME_FEATURES)
    conditions += condition(config.pooled_projection_dim)
    ends = linear(config.in_channels, width) + linear(config.joint_attention_dim, width)
    ends += linear(width, 2 * width) + linear(width, config.in_channels)
    stream = linear(width, 6 * width) + 4 * linear(width, width) + 2 * head
    stream += linear(width, 4 * width) + linear(4 * width, width)
    single = linear(width, 3 * width) + 3 * linear(width, width) + 2 * head
    single += linear(width, 4 * width) + linear(5 * width, width)
    blocks = config.num_layers * 2 * stream + config.num_single_layers * single
    return Count(conditions + ends + blocks)


@parameters.register
def _unet(config: UNetConfig) -> Count:
    first, time = config.block_out_channels[0], config.time_features
    total = linear(first, time) + linear(time, time)
    total += first * (config.time_cond_proj_dim or 0)
    if config.addition_embed_type is not None:
        features = config.projection_class_embeddings_input_dim or 0
        total += linear(features, time) + linear(time, time)
    if config.encoder_hid_dim is not None:
        total += linear(config.encoder_hid_dim, config.projected_text_features)
    total += conv(config.in_channels, first, config.conv_in_kernel**2)
    total += conv(first, config.out_channels, config.conv_out_kernel**2) + 2 * first
    levels = sum(_unet_down(config)) + sum(_unet_up(config))
    return Count(total + levels + _unet_mid(config))


def _unet_down(config: UNetConfig) -> Iterable[int]:
    width = config.block_out_channels[0]
    for index, level in enumerate(config.down_levels):
        for _ in range(level.residual_blocks):
            yield _unet_resnet(config, width, level.channels)
            width = level.channels
        yield sum(_unet_transformer(level, depth) for depth in level.depths or ())
        if index < len(config.down_levels) - 1:
            yield conv(width, width, 9)


def _unet_mid(config: UNetConfig) -> int:
    if config.mid_block_type is None:
        return 0
    level = config.mid_level._replace(only_cross_attention=False)
    resnets = level.residual_blocks * _unet_resnet(config, level.channels, level.channels)
    return resnets + sum(_unet_transformer(level, depth) for depth in level.depths or ())


def _unet_up(config: UNetConfig) -> Iterable[int]:
    levels = config.up_levels
    skips = [config.block_out_channels[0]]
    for index, level in enumerate(config.down_levels):
        halved = 1 if index < len(levels) - 1 else 0
        skips += [level.channels] * (level.residual_blocks + halved)
    width = levels[0].channels
    for index, level in enumerate(levels):
        for _ in range(level.residual_blocks):
            yield _unet_resnet(config, width + skips.pop(), level.channels)
            width = level.channels
        yield sum(_unet_transformer(level, depth) for depth in level.depths or ())
        if index < len(levels) - 1:
            yield conv(width, width, 9)


def _unet_resnet(config: UNetConfig, inputs: int, width: int) -> int:
    told = 2 * width if config.resnet_time_scale_shift == "scale_shift" else width
    shortcut = linear(inputs, width) if inputs != width else 0
    convs = conv(inputs, width, 9) + conv(width, width, 9)
    return 2 * inputs + 2 * width + convs + linear(config.time_features, told) + shortcut


def _unet_transformer(level: Level, depth: int) -> int:
    inner, text = level.heads * (level.channels // level.heads), level.text_features
    seen = text if level.only_cross_attention else inner
    attentions = 2 * (inner * inner + linear(inner, inner)) + 2 * (seen + text) * inner
    layer = 6 * inner + attentions + linear(inner, 8 * inner) + linear(4 * inner, inner)
    ends = 2 * level.channels + linear(level.channels, inner) + linear(inner, level.channels)
    return ends + depth * layer


@parameters.register
def _picture_vae(config: VaeConfig) -> Count:
    widths, latent = config.block_out_channels, config.latent_channels
    depth = config.layers_per_block
    down = _vae_levels(widths, depth) + conv(config.in_channels, widths[0], 9)
    down += 2 * widths[-1] + conv(widths[-1], 2 * latent, 9)
    up = _vae_levels(widths[::-1], depth + 1) + conv(latent, widths[-1], 9)
    up += 2 * widths[0] + conv(widths[0], config.out_channels, 9)
    mids = 2 * _vae_mid(widths[-1], attends=config.mid_block_add_attention)
    total = down + up + mids
    total += linear(2 * latent, 2 * latent) if config.use_quant_conv else 0
    total += linear(latent, latent) if config.use_post_quant_conv else 0
    return Count(total)


def _vae_levels(widths: tuple[int, ...], depth: int) -> int:
    total, inputs = 0, widths[0]
    for width in widths:
        total += _vae_resnet(inputs, width) + (depth - 1) * _vae_resnet(width, width)
        inputs = width
    return total + sum(conv(width, width, 9) for width in widths[:-1])


def _vae_mid(width: int, *, attends: bool) -> int:
    attention = 2 * width + 4 * linear(width, width)
    return 2 * _vae_resnet(width, width) + (attention if attends else 0)


def _vae_resnet(inputs: int, width: int) -> int:
    shortcut = linear(inputs, width) if inputs != width else 0
    return 2 * inputs + 2 * width + conv(inputs, width, 9) + conv(width, width, 9) + shortcut


@parameters.register
def _wan(config: WanConfig) -> Count:
    """The time embedding, norms with scale and bias, and modulation tables stay float32."""
    width, patch = config.width, config.patch_size
    covered = patch[0] * patch[1] * patch[2]
    ends = conv(config.in_channels, width, covered) + linear(width, 6 * width)
    ends += linear(config.text_dim, width) + linear(width, width)
    ends += linear(width, config.velocity_channels * covered)
    kept = linear(config.freq_dim, width) + linear(width, width) + 2 * width
    if config.image_dim is not None:
        features = config.image_dim
        ends += linear(features, features) + linear(features, width)
        ends += features * (config.pos_embed_seq_len or 0)
        kept += 2 * features + 2 * width
    read = linear(width, width) + width  # queries or keys, and their norm
    plain = linear(width, width)  # values, or what comes behind an attention
    sources = 2 if config.added_kv_proj_dim is None else 3
    block = 2 * (read + plain) + sources * (read + plain)
    block += linear(width, config.ffn_dim) + linear(config.ffn_dim, width)
    kept_block = 6 * width + (2 * width if config.cross_attn_norm else 0)
    layers = config.num_layers
    return Count(ends + layers * block, kept + layers * kept_block)


@parameters.register
def _video_vae(config: VideoVaeConfig) -> Count:
    """All of it stays float32: the latents' statistics were taken so."""
    latent, base = config.z_dim, config.encoder_widths
    encoder = conv(config.in_channels, base[0], 27) + _video_mid(base[-1]) + base[-1]
    encoder += conv(base[-1], 2 * latent, 27) + _video_down(config)
    widths = config.decoder_widths
    decoder = conv(latent, widths[0], 27) + _video_mid(widths[0]) + widths[-1]
    decoder += conv(widths[-1], config.out_channels, 27) + _video_up(config)
    return Count(0, encoder + decoder + linear(2 * latent, 2 * latent) + linear(latent, latent))


def _video_down(config: VideoVaeConfig) -> int:
    total, widths = 0, config.encoder_widths
    for level, (inputs, width) in enumerate(itertools.pairwise(widths)):
        rest = config.num_res_blocks - 1
        total += _video_resnet(inputs, width) + rest * _video_resnet(width, width)
        if not config.is_residual and 0.5**level in config.attn_scales:
            total += config.num_res_blocks * _frame_attention(width)
        if level < config.halvings:
            total += conv(width, width, 9)
            total += conv(width, width, 3) if config.downsamples[level] else 0
    return total


def _video_up(config: VideoVaeConfig) -> int:
    total, widths = 0, config.decoder_widths
    shrink = 1 if config.is_residual else 2
    for level, (above, width) in enumerate(itertools.pairwise(widths)):
        inputs = above // (shrink if level else 1)
        total += _video_resnet(inputs, width) + config.num_res_blocks * _video_resnet(width, width)
        if level < config.halvings:
            total += conv(width, width // shrink, 9)
            total += conv(width, 2 * width, 3) if config.upsamples[level] else 0
    return total


def _video_mid(width: int) -> int:
    return 2 * _video_resnet(width, width) + _frame_attention(width)


def _frame_attention(width: int) -> int:
    return width + linear(width, 3 * width) + linear(width, width)


def _video_resnet(inputs: int, width: int) -> int:
    shortcut = linear(inputs, width) if inputs != width else 0
    return inputs + width + conv(inputs, width, 27) + conv(width, width, 27) + shortcut
