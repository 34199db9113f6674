"""Tiny random SDXL checkpoints, built by the reference libraries themselves.

No parameter is trivial, so a missing term is detectable, as in `tiny.py`. The two text encoders
differ in as many ways as possible.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    ControlNetUnionModel,
    EulerDiscreteScheduler,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
)

from tests.parity.tiny import Config, clip_tokenizer, randomize


def make_sdxl(
    folder: Path,
    *,
    kind: type[StableDiffusionXLPipeline] = StableDiffusionXLPipeline,
    unet: Config | None = None,
    vae: Config | None = None,
    clip: Config | None = None,
    clip_2: Config | None = None,
    scheduler: Any = None,
    seed: int = 0,
    pipeline: Config | None = None,
    **save_kwargs: Any,
) -> Path:
    """Write a complete SDXL checkpoint in diffusers' layout to `folder` and return it.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them.

    Args:
        kind: the pipeline class that the checkpoint is saved as.
        scheduler: a diffusers scheduler; by default Euler with SDXL's own values.
        pipeline: further arguments of the class (`force_zeros_for_empty_prompt`, …).
        save_kwargs: go to `save_pretrained` (`max_shard_size`, `variant`, …).
    """
    image = randomize(AutoencoderKL(**_vae_config(vae or {})), seed + 1)
    image.decoder.conv_out.weight.data *= 0.5  # most pixels in [-1, 1]; clipping hides errors
    text = randomize(CLIPTextModel(_clip_config(_CLIP | (clip or {}))), seed + 2)
    text_2 = randomize(
        CLIPTextModelWithProjection(_clip_config(_CLIP_2 | (clip_2 or {}))), seed + 3
    )
    network = randomize(
        UNet2DConditionModel(**_unet_config(unet or {}, image, text, text_2)), seed + 4
    )
    network.add_embedding.linear_1.weight.data *= 2.0  # larger effect of sizes and pooled text
    kind(
        vae=image,
        text_encoder=text,
        text_encoder_2=text_2,
        tokenizer=clip_tokenizer(text.config.max_position_embeddings),
        tokenizer_2=_exclaiming(text_2.config.max_position_embeddings),
        unet=network,
        scheduler=scheduler or EulerDiscreteScheduler(**SCHEDULER),
        **(pipeline or {}),
    ).save_pretrained(folder, **save_kwargs)
    return folder


def make_refiner(
    folder: Path,
    *,
    unet: Config | None = None,
    vae: Config | None = None,
    clip_2: Config | None = None,
    scheduler: Any = None,
    seed: int = 10,
    pipeline: Config | None = None,
) -> Path:
    """Write a complete refiner to `folder` and return it: one text encoder, no target size.

    Arguments are those of `make_sdxl`.
    """
    image = randomize(AutoencoderKL(**_vae_config(vae or {})), seed + 1)
    image.decoder.conv_out.weight.data *= 0.5
    text = randomize(CLIPTextModelWithProjection(_clip_config(_CLIP_2 | (clip_2 or {}))), seed + 3)
    network = randomize(
        UNet2DConditionModel(**_unet_config(_REFINER | (unet or {}), image, text, numbers=5)),
        seed + 4,
    )
    network.add_embedding.linear_1.weight.data *= 2.0
    StableDiffusionXLImg2ImgPipeline(
        vae=image,
        text_encoder=None,
        text_encoder_2=text,
        tokenizer=None,
        tokenizer_2=_exclaiming(text.config.max_position_embeddings),
        unet=network,
        scheduler=scheduler or EulerDiscreteScheduler(**SCHEDULER),
        requires_aesthetics_score=True,
        **{"force_zeros_for_empty_prompt": False, **(pipeline or {})},
    ).save_pretrained(folder)
    return folder


SCHEDULER: Config = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
    "timestep_spacing": "leading",
}

_CLIP: Config = {
    "hidden_size": 30,
    "intermediate_size": 52,
    "projection_dim": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
}
_CLIP_2: Config = {
    "hidden_size": 28,
    "intermediate_size": 44,
    "projection_dim": 21,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_act": "gelu",
}


_REFINER: Config = {
    "block_out_channels": (8, 12, 20),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": 2,
    "attention_head_dim": (1, 3, 5),
}
"""Structure of the refiner's UNet: an outer level without attention below the inner ones, and
attention in the middle.
"""


def _unet_config(overrides: Config, vae: Any, *towers: Any, numbers: int = 6) -> Config:
    sizes = overrides.get("addition_time_embed_dim", 6)
    config: Config = {
        "sample_size": 16,
        "in_channels": vae.config.latent_channels,
        "out_channels": vae.config.latent_channels,
        "block_out_channels": (12, 24),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "transformer_layers_per_block": (1, 2),
        "attention_head_dim": (2, 3),
        "use_linear_projection": True,
        "norm_num_groups": 4,
        "cross_attention_dim": sum(tower.config.hidden_size for tower in towers),
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": sizes,
        "projection_class_embeddings_input_dim": (
            numbers * sizes + towers[-1].config.projection_dim
        ),
    }
    return config | overrides


def _vae_config(overrides: Config) -> Config:
    config: Config = {
        "block_out_channels": (8, 12),
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 4,
        "scaling_factor": 0.13025,
        "force_upcast": True,
    } | overrides
    depth = len(config["block_out_channels"])
    blocks = {
        "down_block_types": ("DownEncoderBlock2D",) * depth,
        "up_block_types": ("UpDecoderBlock2D",) * depth,
    }
    return blocks | config


def _clip_config(values: Config) -> CLIPTextConfig:
    vocab = len(clip_tokenizer(77))
    ids = {"bos_token_id": vocab - 2, "eos_token_id": vocab - 1, "pad_token_id": vocab - 1}
    return CLIPTextConfig(vocab_size=vocab, **(ids | values))


def _exclaiming(max_length: int) -> CLIPTokenizer:
    """Tokenizer that pads with "!", like SDXL's second tokenizer."""
    tokenizer = clip_tokenizer(max_length)
    tokenizer.pad_token = "!"
    return tokenizer


def make_control(folder: Path, checkpoint: Path, seed: int, **overrides: Any) -> Any:
    """Write a ControlNet for that checkpoint's UNet, a union if it has kinds; return it."""
    unet = UNet2DConditionModel.from_pretrained(checkpoint / "unet").config
    config = control_config(**{name: unet[name] for name in SHARED} | overrides)
    kind: Any = ControlNetModel
    if "num_control_type" in config:
        kind, first = ControlNetUnionModel, config["block_out_channels"][0]
        config |= {"num_trans_channel": first, "num_proj_channel": first}
    network: Any = randomize(kind(**config), seed)
    if "num_control_type" in config:
        network.controlnet_cond_embedding.conv_out.weight.data *= 4.0  # larger effect of the images
    network.save_pretrained(folder)
    return network


SHARED = (
    "cross_attention_dim",
    "addition_time_embed_dim",
    "projection_class_embeddings_input_dim",
)
"""Sizes that a ControlNet takes from its UNet."""


def control_config(**overrides: Any) -> Config:
    """Config of a small ControlNet; the caller passes the sizes that it shares with a UNet."""
    return {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "block_out_channels": (12, 24),
        "layers_per_block": 1,
        "transformer_layers_per_block": (1, 2),
        "attention_head_dim": (2, 3),
        "use_linear_projection": True,
        "norm_num_groups": 4,
        "addition_embed_type": "text_time",
        "conditioning_embedding_out_channels": (4, 6),
        **overrides,
    }
