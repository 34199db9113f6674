"""Counts from the configs against the networks' own shapes, published sizes and odd ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models.flux import published as flux
from models.flux.config import FluxConfig
from models.flux.transformer import FluxTransformer
from models.nn.abstract import abstract_module
from models.parameters import Count, memory_bytes, parameters, projected
from models.sdxl import published as sdxl
from models.sdxl.config import UNetConfig
from models.sdxl.unet import UNet
from models.text.clip import ClipConfig, ClipTextModel, ClipTextModelWithProjection
from models.text.t5 import T5Config, T5Encoder
from models.text.umt5 import UMT5Config, UMT5Encoder
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.vision.clip import ClipVisionConfig, ClipVisionModel
from models.wan import published as wan
from models.wan.config import WanConfig
from models.wan.transformer import WanTransformer

ODD_UNET = UNetConfig(
    in_channels=9,
    out_channels=3,
    block_out_channels=(8, 24, 16),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"),
    layers_per_block=(1, 3, 2),
    transformer_layers_per_block=(2, 1, 3),
    attention_head_dim=(2, 3, 4),
    only_cross_attention=(True, False, False),
    norm_num_groups=4,
    cross_attention_dim=20,
    resnet_time_scale_shift="scale_shift",
    addition_embed_type="text_time",
    addition_time_embed_dim=6,
    projection_class_embeddings_input_dim=44,
    time_cond_proj_dim=10,
    encoder_hid_dim=12,
    encoder_hid_dim_type="text_proj",
)
ODD_VAE = VaeConfig(
    block_out_channels=(8, 24),
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
    layers_per_block=2,
    latent_channels=5,
    norm_num_groups=4,
    use_quant_conv=False,
    mid_block_add_attention=False,
)
ODD_VIDEO_VAE = VideoVaeConfig(
    base_dim=6,
    decoder_base_dim=10,
    z_dim=4,
    dim_mult=(1, 3, 2),
    num_res_blocks=1,
    attn_scales=(0.5,),
    temperal_downsample=(True, False),
    latents_mean=(0.0,) * 4,
    latents_std=(1.0,) * 4,
)
VIDEO_VAE_2_2 = VideoVaeConfig(
    is_residual=True,
    base_dim=160,
    decoder_base_dim=256,
    z_dim=48,
    in_channels=12,
    out_channels=12,
    patch_size=2,
    scale_factor_spatial=16,
    latents_mean=(0.0,) * 48,
    latents_std=(1.0,) * 48,
)


def counted(kind: Callable[..., nnx.Module], config: Any) -> Count:
    """Of the network itself, as shapes, made in bfloat16."""
    module = abstract_module(kind, config, param_dtype=jnp.bfloat16)
    leaves = jax.tree.leaves(nnx.state(module, nnx.Param))
    sizes = {
        dtype: sum(leaf.size for leaf in leaves if leaf.dtype == dtype)
        for dtype in (jnp.bfloat16, jnp.float32)
    }
    assert sum(sizes.values()) == sum(leaf.size for leaf in leaves)
    return Count(sizes[jnp.bfloat16], sizes[jnp.float32])


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (FluxTransformer, FluxConfig.from_dict(flux.FLUX_DEV["transformer"])),
        (FluxTransformer, FluxConfig.from_dict(flux.FLUX_SCHNELL["transformer"])),
        (FluxTransformer, FluxConfig(num_layers=0, num_single_layers=1)),
        (UNet, UNetConfig.from_dict(sdxl.UNET)),
        (UNet, UNetConfig.from_dict(sdxl.SDXL_INPAINTING["unet"])),
        (UNet, UNetConfig()),
        (UNet, ODD_UNET),
        (ClipTextModel, ClipConfig.from_dict(sdxl.CLIP_L)),
        (T5Encoder, T5Config.from_dict(flux.T5_XXL)),
        (T5Encoder, T5Config(num_layers=1, d_ff=12)),
        (UMT5Encoder, UMT5Config(num_layers=3, num_heads=5)),
        (AutoencoderKL, VaeConfig.from_dict(flux.VAE)),
        (AutoencoderKL, VaeConfig.from_dict(sdxl.VAE)),
        (AutoencoderKL, ODD_VAE),
        (ClipVisionModel, ClipVisionConfig.from_dict(wan.CLIP_VIT_H)),
        (ClipVisionModel, ClipVisionConfig(image_size=30, patch_size=7, num_hidden_layers=1)),
        (UMT5Encoder, UMT5Config.from_dict(wan.UMT5_XXL)),
        (WanTransformer, WanConfig.from_dict(wan.T2V_1_3B)),
        (WanTransformer, WanConfig.from_dict(wan.FLF2V_14B)),
        (WanTransformer, WanConfig.from_dict(wan.TI2V_5B)),
        (WanTransformer, WanConfig(image_dim=12, num_layers=2, pos_embed_seq_len=6)),
        (WanTransformer, WanConfig(cross_attn_norm=False, patch_size=(2, 1, 3), num_layers=1)),
    ],
)
def test_counts_are_those_of_the_network(kind: Callable[..., nnx.Module], config: Any) -> None:
    assert parameters(config) == counted(kind, config)


@pytest.mark.parametrize("config", [VideoVaeConfig(), VIDEO_VAE_2_2, ODD_VIDEO_VAE])
def test_a_video_autoencoder_is_float32(config: VideoVaeConfig) -> None:
    assert parameters(config) == Count(0, counted(VideoAutoencoder, config).total)


def test_a_projection_counts_too() -> None:
    config = ClipConfig.from_dict(sdxl.CLIP_BIG_G)
    assert projected(config) == counted(ClipTextModelWithProjection, config)


def test_published_sizes() -> None:
    """The numbers that their authors give: 12 B, 2.6 B, 14 B."""
    assert parameters(FluxConfig.from_dict(flux.FLUX_DEV["transformer"])).total == 11_901_408_320
    assert parameters(UNetConfig.from_dict(sdxl.UNET)).total == 2_567_463_684
    assert parameters(WanConfig()).total == 14_288_491_584


def test_float32_parts_take_four_bytes_in_any_dtype() -> None:
    counts = [Count(loaded=10, float32=3), Count(loaded=5)]
    assert memory_bytes(counts, jnp.bfloat16) == 2 * 15 + 4 * 3
    assert memory_bytes(counts, jnp.float32) == 4 * 18


def test_a_config_of_no_network_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        parameters(object())
