"""Tiny random checkpoints of pipelines without a native family, built by diffusers itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLCogVideoX,
    AutoencoderKLHunyuanVideo15,
    ChromaPipeline,
    ChromaTransformer2DModel,
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
    Krea2Pipeline,
    Krea2Transformer2DModel,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    PNDMScheduler,
    SanaPipeline,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from diffusers.guiders import ClassifierFreeGuidance
from transformers import (
    ByT5Tokenizer,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Gemma2Config,
    Gemma2Model,
    Qwen3VLConfig,
    Qwen3VLModel,
    T5EncoderModel,
)

from tests.parity import tiny, tiny_qwen
from tests.parity.tiny import clip_tokenizer, randomize, t5_tokenizer
from tests.parity.tiny_qwen import qwen_tokenizer
from tests.parity.tiny_qwenimage import make_vae

SIDE_LATENTS = 8


def stable_diffusion() -> Any:
    """Stable Diffusion 1.5: a UNet, and a scheduler with one step more than requested."""
    text = CLIPTextModel(tiny._clip_config({"hidden_size": 32, "num_attention_heads": 4}))
    network = UNet2DConditionModel(
        sample_size=SIDE_LATENTS,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=4,
        cross_attention_dim=32,
    )
    return StableDiffusionPipeline(
        vae=randomize(AutoencoderKL(**vae_config()), 1),
        text_encoder=randomize(text, 2),
        tokenizer=clip_tokenizer(77),
        unet=randomize(network, 3),
        scheduler=PNDMScheduler(skip_prk_steps=True, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def pixart_sigma() -> Any:
    """PixArt-Sigma: no callback at the end of a step, and sizes in bins."""
    text = T5EncoderModel(tiny._t5_config({}))
    network = PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=1,
        cross_attention_dim=16,
        sample_size=SIDE_LATENTS,
        patch_size=2,
        caption_channels=text.config.d_model,
        use_additional_conditions=False,
    )
    return PixArtSigmaPipeline(
        tokenizer=t5_tokenizer(64),
        text_encoder=randomize(text, 2),
        vae=randomize(AutoencoderKL(**vae_config()), 1),
        transformer=randomize(network, 3),
        scheduler=DPMSolverMultistepScheduler(),
    )


def stable_diffusion_3() -> Any:
    """Stable Diffusion 3.5: three text encoders, and a flow of packed patches."""
    texts = [
        CLIPTextModelWithProjection(
            tiny._clip_config({"hidden_size": 16, "num_attention_heads": 2, "projection_dim": 16})
        )
        for _ in range(2)
    ]
    text_3 = T5EncoderModel(tiny._t5_config({"d_model": 32}))
    network = SD3Transformer2DModel(
        sample_size=SIDE_LATENTS,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        out_channels=4,
        pos_embed_max_size=32,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    )
    return StableDiffusion3Pipeline(
        transformer=randomize(network, 3),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=randomize(AutoencoderKL(**tiny._vae_config({})), 1),
        text_encoder=randomize(texts[0], 4),
        tokenizer=clip_tokenizer(77),
        text_encoder_2=randomize(texts[1], 5),
        tokenizer_2=clip_tokenizer(77),
        text_encoder_3=randomize(text_3, 6),
        tokenizer_3=t5_tokenizer(64),
    )


def sana() -> Any:
    """Sana: linear attention, a deep autoencoder, and a language model for text."""
    network = SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=8,
        sample_size=SIDE_LATENTS,
    )
    autoencoder = AutoencoderDC(
        in_channels=3,
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )
    text = Gemma2Config(
        head_dim=16,
        hidden_size=8,
        intermediate_size=8,
        max_position_embeddings=512,
        num_attention_heads=2,
        num_hidden_layers=1,
        num_key_value_heads=2,
        vocab_size=len(qwen_tokenizer()),
    )
    return SanaPipeline(
        tokenizer=qwen_tokenizer(),
        text_encoder=randomize(Gemma2Model(text), 2),
        vae=randomize(autoencoder, 1),
        transformer=randomize(network, 3),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
    )


def chroma() -> Any:
    """Chroma: Flux's network with modulations of its own, and one text encoder."""
    text = T5EncoderModel(tiny._t5_config({"d_model": 32}))
    network = ChromaTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
        approximator_hidden_dim=32,
        approximator_layers=1,
        approximator_num_channels=16,
    )
    return ChromaPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=randomize(AutoencoderKL(**tiny._vae_config({})), 1),
        text_encoder=randomize(text, 2),
        tokenizer=t5_tokenizer(64),
        transformer=randomize(network, 3),
    )


def krea_2() -> Any:
    """Krea 2: one stream over text states of several layers, and Qwen-Image's autoencoder."""
    text = {**tiny_qwen.QWEN3, "hidden_size": 16, "vocab_size": len(qwen_tokenizer()) + 5}
    text["rope_parameters"] = {
        "rope_theta": 5e5,
        "rope_type": "default",
        "mrope_section": [2, 2, 1],
        "mrope_interleaved": True,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_heads": 2,
        "out_hidden_size": 16,
        "deepstack_visual_indexes": [0],
    }
    network = Krea2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        attention_head_dim=12,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        timestep_embed_dim=16,
        text_hidden_dim=16,
        num_text_layers=2,
        text_num_attention_heads=2,
        text_num_key_value_heads=1,
        text_intermediate_size=20,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 4, 4),
    )
    return Krea2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=make_vae(1),
        text_encoder=randomize(
            Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision)), 2
        ),
        tokenizer=qwen_tokenizer(),
        transformer=randomize(network, 3),
        text_encoder_select_layers=(1, 3),
    )


def hunyuan_video() -> Any:
    """HunyuanVideo 1.5: a video of Qwen's text states, and of glyphs by ByT5."""
    text = tiny_qwen.qwen25(2).model.language_model
    text_2 = T5EncoderModel(tiny._t5_config({"d_model": 16, "vocab_size": 400}))
    autoencoder = AutoencoderKLHunyuanVideo15(
        latent_channels=4,
        block_out_channels=(16, 16, 16),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=4,
    )
    network = HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        num_refiner_layers=1,
        text_embed_dim=text.config.hidden_size,
        text_embed_2_dim=16,
        image_embed_dim=8,
        rope_axes_dim=(2, 2, 4),
        target_size=16,
        task_type="t2v",
    )
    return HunyuanVideo15Pipeline(
        text_encoder=text,
        tokenizer=qwen_tokenizer(),
        transformer=randomize(network, 3),
        vae=randomize(autoencoder, 1),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        text_encoder_2=randomize(text_2, 4),
        tokenizer_2=ByT5Tokenizer(),
        guider=ClassifierFreeGuidance(guidance_scale=4.0),
    )


def cog_video() -> Any:
    """CogVideoX: a video whose latents have frames before channels."""
    text = T5EncoderModel(tiny._t5_config({"d_model": 32}))
    network = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        time_embed_dim=2,
        text_embed_dim=32,
        num_layers=1,
        sample_width=2,
        sample_height=2,
        sample_frames=9,
        patch_size=2,
        temporal_compression_ratio=4,
        max_text_seq_length=226,
    )
    autoencoder = AutoencoderKLCogVideoX(
        in_channels=3,
        out_channels=3,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    )
    return CogVideoXPipeline(
        tokenizer=t5_tokenizer(64),
        text_encoder=randomize(text, 2),
        vae=randomize(autoencoder, 1),
        transformer=randomize(network, 3),
        scheduler=CogVideoXDDIMScheduler(),
    )


def vae_config(**overrides: Any) -> dict[str, Any]:
    """Config of an autoencoder with a factor of 2."""
    config = tiny._vae_config({"block_out_channels": (8, 12), "shift_factor": None})
    return {**config, "use_quant_conv": True, "use_post_quant_conv": True, **overrides}


MAKERS: Mapping[str, Callable[[], Any]] = {
    "StableDiffusionPipeline": stable_diffusion,
    "PixArtSigmaPipeline": pixart_sigma,
    "StableDiffusion3Pipeline": stable_diffusion_3,
    "SanaPipeline": sana,
    "ChromaPipeline": chroma,
    "Krea2Pipeline": krea_2,
    "HunyuanVideo15Pipeline": hunyuan_video,
    "CogVideoXPipeline": cog_video,
}
"""Makers by class, each with real components of small numbers."""


def make(name: str, folder: Path) -> Path:
    """Write the checkpoint of a class in diffusers' layout to `folder` and return it."""
    with torch.no_grad():
        MAKERS[name]().save_pretrained(folder)
    return folder
