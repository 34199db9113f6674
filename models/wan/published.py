"""Configs of the published Wan checkpoints, as in `config.json`, for planning and tests.

Source: the `-Diffusers` repositories of Wan-AI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.vae.published import WAN_2_1

Config = Mapping[str, Any]

T2V_14B: Config = {
    "_class_name": "WanTransformer3DModel",
    "added_kv_proj_dim": None,
    "attention_head_dim": 128,
    "cross_attn_norm": True,
    "eps": 1e-06,
    "ffn_dim": 13824,
    "freq_dim": 256,
    "image_dim": None,
    "in_channels": 16,
    "num_attention_heads": 40,
    "num_layers": 40,
    "out_channels": 16,
    "patch_size": [1, 2, 2],
    "pos_embed_seq_len": None,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
    "text_dim": 4096,
}
"""Wan 2.1 T2V 14B, and both experts of Wan 2.2 T2V A14B."""

T2V_1_3B: Config = {**T2V_14B, "ffn_dim": 8960, "num_attention_heads": 12, "num_layers": 30}
"""Wan 2.1 T2V 1.3B."""

I2V_14B: Config = {**T2V_14B, "in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120}
"""Wan 2.1 I2V 14B, 480p and 720p; input channels: 16 latents, 4 mask, 16 image."""

FLF2V_14B: Config = {**I2V_14B, "pos_embed_seq_len": 514}
"""Wan 2.1 FLF2V 14B: first and last frame, 257 tokens each."""

I2V_A14B: Config = {**T2V_14B, "in_channels": 36}
"""Both experts of Wan 2.2 I2V A14B, without image embedding."""

TI2V_5B: Config = {
    **T2V_14B,
    "ffn_dim": 14336,
    "in_channels": 48,
    "num_attention_heads": 24,
    "num_layers": 30,
    "out_channels": 48,
}
"""Wan 2.2 TI2V 5B, for the VAE with 48 channels."""

VACE_14B: Config = {
    **T2V_14B,
    "_class_name": "WanVACETransformer3DModel",
    "vace_in_channels": 96,
    "vace_layers": [*range(0, 40, 5)],
}
"""Wan 2.1 VACE 14B."""

VACE_1_3B: Config = {
    **VACE_14B,
    **{name: T2V_1_3B[name] for name in ("ffn_dim", "num_attention_heads", "num_layers")},
    "vace_layers": [*range(0, 30, 2)],
}
"""Wan 2.1 VACE 1.3B."""

ANIMATE_14B: Config = {
    **I2V_14B,
    "_class_name": "WanAnimateTransformer3DModel",
    "latent_channels": 16,
    "face_encoder_hidden_dim": 1024,
    "face_encoder_num_heads": 4,
    "inject_face_latents_blocks": 5,
    "motion_dim": 20,
    "motion_encoder_dim": 512,
    "motion_encoder_size": 512,
    "motion_style_dim": 512,
}
"""Wan 2.2 Animate 14B, as diffusers' convert_wan_to_diffusers.py writes it."""

UMT5_XXL: Config = {
    "architectures": ["UMT5EncoderModel"],
    "d_ff": 10240,
    "d_kv": 64,
    "d_model": 4096,
    "feed_forward_proj": "gated-gelu",
    "layer_norm_epsilon": 1e-06,
    "model_type": "umt5",
    "num_heads": 64,
    "num_layers": 24,
    "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32,
    "vocab_size": 256384,
}
"""Text encoder of all Wan models."""

CLIP_VIT_H: Config = {
    "architectures": ["CLIPVisionModel"],
    "hidden_act": "gelu",
    "hidden_size": 1280,
    "image_size": 224,
    "intermediate_size": 5120,
    "layer_norm_eps": 1e-05,
    "model_type": "clip_vision_model",
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 32,
    "patch_size": 14,
    "projection_dim": 1024,
}
"""Image encoder of Wan 2.1 I2V and FLF2V."""

VAE_2_1: Config = WAN_2_1
"""Autoencoder of Wan 2.1, and of the 14B models of 2.2."""

VAE_2_2: Config = {
    **VAE_2_1,
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "in_channels": 12,
    "out_channels": 12,
    "is_residual": True,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
}
"""Autoencoder of Wan 2.2 TI2V 5B. Zeros and ones replace the statistics, which do not affect
shapes."""

SCHEDULER: Config = {
    "_class_name": "UniPCMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
}
"""Scheduler of all Wan models, without its `flow_shift`."""
