"""Tiny random Wan checkpoints of odd shapes, built by the reference libraries themselves.

Parameters are far from their initial values and keep activations near 1, as in `tests.parity.tiny`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanAnimatePipeline,
    WanAnimateTransformer3DModel,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
)
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModel,
    UMT5Config,
    UMT5EncoderModel,
)

from tests.parity.tiny import Config, randomize, t5_tokenizer

SCHEDULERS = {
    kind.__name__: kind for kind in (UniPCMultistepScheduler, FlowMatchEulerDiscreteScheduler)
}


Network: TypeAlias = (
    WanTransformer3DModel | WanVACETransformer3DModel | WanAnimateTransformer3DModel
)


def make_wan(folder: Path, **parts: Any) -> Path:
    """Write a complete Wan checkpoint in diffusers' layout to `folder` and return it.

    Arguments are those of `wan_pipeline`.
    """
    wan_pipeline(**parts).save_pretrained(folder)
    return folder


def wan_pipeline(
    *,
    from_image: bool = False,
    vace: Config | None = None,
    animate: Config | None = None,
    transformer: Config | None = None,
    transformer_2: Config | None = None,
    vision: Config | None = None,
    vae: Config | None = None,
    t5: Config | None = None,
    scheduler: Config | None = None,
    boundary_ratio: float | None = None,
    expand_timesteps: bool = False,
    seed: int = 0,
) -> WanPipeline | WanImageToVideoPipeline | WanVACEPipeline | WanAnimatePipeline:
    """A diffusers pipeline in memory, float32.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them.

    Args:
        from_image: the image-to-video class.
        vace: of VACE's transformers; None for other models.
        animate: of Animate's transformer; None for other models.
        transformer: of the (high-noise) network; None with only `transformer_2`: no such network.
        transformer_2: of the low-noise network; None: no such network.
        vision: of the image encoder; None: no image encoder.
    """
    video = video_vae(seed + 1, **(vae or {}))
    text = randomize(UMT5EncoderModel(UMT5Config(**(_T5 | (t5 or {})))), seed + 2)
    if animate is not None:
        from_image, vision = True, vision or {}
    encoder = vision_encoder(seed + 5, **vision) if vision is not None else None
    latents, frames = video.config.z_dim, video.config.scale_factor_temporal
    joined = latents + frames if from_image and not expand_timesteps else 0
    sizes = {
        "in_channels": latents + joined,
        "out_channels": latents,
        "text_dim": text.config.d_model,
        "image_dim": encoder.config.hidden_size if encoder else None,
        **_sizes_of_kind(video, vace, animate),
    }
    if transformer is None and transformer_2 is None:
        transformer = {}
    parts = {
        "scheduler": make_scheduler(**(scheduler or {})),
        "vae": video,
        "text_encoder": text,
        "tokenizer": t5_tokenizer(512),
        "transformer": _network(seed + 3, sizes, transformer),
        "transformer_2": _network(seed + 4, sizes, transformer_2),
        "boundary_ratio": boundary_ratio,
        "expand_timesteps": expand_timesteps,
    }
    if vace is not None:
        del parts["expand_timesteps"]
        return WanVACEPipeline(**parts)
    if not from_image:
        return WanPipeline(**parts)
    return _from_image(parts, encoder, animate is not None)


def _from_image(
    parts: Config, encoder: CLIPVisionModel | None, animates: bool
) -> WanImageToVideoPipeline | WanAnimatePipeline:
    processor = image_processor(encoder.config.image_size) if encoder else None
    vision_parts = {"image_encoder": encoder, "image_processor": processor}
    if not animates:
        return WanImageToVideoPipeline(**parts, **vision_parts)
    excluded = ("transformer_2", "boundary_ratio", "expand_timesteps")
    remaining = {name: part for name, part in parts.items() if name not in excluded}
    return WanAnimatePipeline(**remaining, **vision_parts)


def _sizes_of_kind(video: AutoencoderKLWan, vace: Config | None, animate: Config | None) -> Config:
    """Return the additional sizes of VACE's and Animate's transformers."""
    if vace is not None:
        return {"vace_layers": (0, 2), "vace_in_channels": _control_channels(video), **vace}
    if animate is not None:
        return {"latent_channels": video.config.z_dim, **_ANIMATE, **animate}
    return {}


def _control_channels(vae: AutoencoderKLWan) -> int:
    return 2 * vae.config.z_dim + 4 ** len(vae.config.temperal_downsample)


def video_vae(seed: int, **overrides: Any) -> AutoencoderKLWan:
    """Video autoencoder whose latents have means and deviations by channel."""
    config = _VAE | overrides
    generator = torch.Generator("cpu").manual_seed(seed)
    statistics = {
        "latents_mean": (torch.randn(config["z_dim"], generator=generator) * 0.5).tolist(),
        "latents_std": (torch.rand(config["z_dim"], generator=generator) + 0.6).tolist(),
    }
    vae = randomize(AutoencoderKLWan(**(statistics | config)), seed)
    for name, parameter in vae.named_parameters():
        if name.endswith("gamma"):
            parameter.data.mul_(0.2).add_(1.0)
    vae.decoder.conv_out.weight.data *= 0.5  # most pixels in [-1, 1]; clipping hides errors
    return vae


def vision_encoder(seed: int, **overrides: Any) -> CLIPVisionModel:
    return randomize(CLIPVisionModel(CLIPVisionConfig(**(_VISION | overrides))), seed)


def image_processor(size: int) -> CLIPImageProcessor:
    return CLIPImageProcessor(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}
    )


def make_scheduler(**overrides: Any) -> UniPCMultistepScheduler | FlowMatchEulerDiscreteScheduler:
    """UniPC for flow, or the class that `kind` names, with these options."""
    kind = overrides.pop("kind", "UniPCMultistepScheduler")
    defaults = _SCHEDULER if kind == "UniPCMultistepScheduler" else {}
    return SCHEDULERS[kind](**(defaults | overrides))


def _network(seed: int, sizes: Config, overrides: Config | None) -> Network | None:
    if overrides is None:
        return None
    defaults = {"added_kv_proj_dim": None}
    config = _TRANSFORMER | sizes | defaults | overrides
    if sizes["image_dim"] and "added_kv_proj_dim" not in overrides:
        width = config["num_attention_heads"] * config["attention_head_dim"]
        config["added_kv_proj_dim"] = width
    kind = WanVACETransformer3DModel if "vace_layers" in config else WanTransformer3DModel
    kind = WanAnimateTransformer3DModel if "motion_dim" in config else kind
    network = randomize(kind(**config), seed)
    _sharpen(network)
    return network


def _sharpen(transformer: Network) -> None:
    """Sharpen attention: nearly uniform attention would hide single words and positions."""
    for name, parameter in transformer.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight", "norm_added_k.weight")):
            parameter.data *= 2.0
        if name.startswith("motion_encoder") and parameter.ndim > 1:
            parameter.data /= parameter.data.std()  # kernels are scaled at their use


_ANIMATE: Config = {
    "num_layers": 4,
    "motion_encoder_channel_sizes": {"4": 12, "8": 10, "16": 7},
    "motion_encoder_size": 16,
    "motion_style_dim": 18,
    "motion_dim": 5,
    "motion_encoder_dim": 13,
    "face_encoder_hidden_dim": 16,
    "face_encoder_num_heads": 4,
    "inject_face_latents_blocks": 2,
    "motion_encoder_batch_size": 2,
}
_TRANSFORMER: Config = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 3,
    "attention_head_dim": 20,
    "freq_dim": 34,
    "ffn_dim": 71,
    "num_layers": 3,
    "rope_max_seq_len": 32,
}

_VAE: Config = {
    "base_dim": 6,
    "z_dim": 5,
    "dim_mult": [1, 2, 2, 3],
    "num_res_blocks": 1,
}

VAE_2_2: Config = {
    "base_dim": 6,
    "decoder_base_dim": 8,
    "z_dim": 7,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 1,
    "is_residual": True,
    "patch_size": 2,
    "in_channels": 12,
    "out_channels": 12,
    "scale_factor_spatial": 16,
}
"""Structure of Wan 2.2's VAE: shortcuts around the resampling, patches of 2 x 2 pixels."""

_T5: Config = {
    "vocab_size": len(t5_tokenizer(512)) + 3,
    "d_model": 40,
    "d_kv": 7,
    "d_ff": 60,
    "num_layers": 2,
    "num_heads": 5,
    "feed_forward_proj": "gated-gelu",
}

_VISION: Config = {
    "hidden_size": 26,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 30,
    "patch_size": 10,
    "hidden_act": "gelu",
}

_SCHEDULER: Config = {
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 3.0,
    "num_train_timesteps": 1000,
}
