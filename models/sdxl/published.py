"""Configs of published SDXL checkpoints: the fields that define the networks' shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import CLIP_L

CLIP_BIG_G: Mapping[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "projection_dim": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "max_position_embeddings": 77,
    "hidden_act": "gelu",
    "eos_token_id": 2,
}
CLIP_VISION_H: Mapping[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 14,
    "hidden_act": "gelu",
    "projection_dim": 1024,
}
"""Image encoder of the `vit-h` IP-Adapters: h94/IP-Adapter, models/image_encoder, which is
OpenCLIP's ViT-H-14."""
IP_ADAPTER_PLUS: Mapping[str, Any] = {
    "image_features": 1280,
    "tokens": 16,
    "resampler": {"width": 1280, "heads": 20, "depth": 4, "inner_width": 5120},
}
"""ip-adapter-plus_sdxl_vit-h. Source: IP-Adapter's ip_adapter.py, IPAdapterPlusXL.init_proj."""
VAE: Mapping[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "latent_channels": 4,
    "norm_num_groups": 32,
    "sample_size": 1024,
    "scaling_factor": 0.13025,
    "force_upcast": True,
}
UNET: Mapping[str, Any] = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "block_out_channels": [320, 640, 1280],
    "layers_per_block": 2,
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
REFINER_UNET: Mapping[str, Any] = {
    **UNET,
    "down_block_types": [
        *("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D")
    ],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "block_out_channels": [384, 768, 1536, 1536],
    "transformer_layers_per_block": 4,
    "attention_head_dim": [6, 12, 24, 24],
    "cross_attention_dim": 1280,
    "projection_class_embeddings_input_dim": 2560,
}
"""UNet of the refiner. Source: stabilityai/stable-diffusion-xl-refiner-1.0, unet/config.json."""

SCHEDULER: Mapping[str, Any] = {
    "_class_name": "EulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "epsilon",
    "timestep_spacing": "leading",
    "steps_offset": 1,
}

Checkpoint = Mapping[str, Mapping[str, Any]]

SDXL_BASE: Checkpoint = {
    "unet": UNET,
    "text_encoder": CLIP_L,
    "text_encoder_2": CLIP_BIG_G,
    "vae": VAE,
}
SDXL_INPAINTING: Checkpoint = {**SDXL_BASE, "unet": {**UNET, "in_channels": 9}}
SDXL_REFINER: Checkpoint = {"unet": REFINER_UNET, "text_encoder_2": CLIP_BIG_G, "vae": VAE}

CONTROLNET: Mapping[str, Any] = {
    "conditioning_channels": 3,
    "conditioning_embedding_out_channels": [16, 32, 96, 256],
    "controlnet_conditioning_channel_order": "rgb",
    "in_channels": 4,
    **{
        name: UNET[name]
        for name in (
            *("down_block_types", "block_out_channels", "layers_per_block", "attention_head_dim"),
            *("transformer_layers_per_block", "cross_attention_dim", "use_linear_projection"),
            *("addition_embed_type", "addition_time_embed_dim"),
            "projection_class_embeddings_input_dim",
        )
    },
}
"""Full-size ControlNet, such as diffusers/controlnet-canny-sdxl-1.0."""
CONTROLNET_MID: Mapping[str, Any] = {**CONTROLNET, "transformer_layers_per_block": [0, 0, 1]}
"""ControlNet controlnet-canny-sdxl-1.0-mid, with 273 million parameters."""
CONTROLNET_SMALL: Mapping[str, Any] = {
    **CONTROLNET,
    "down_block_types": ["DownBlock2D"] * 3,
    "transformer_layers_per_block": [0, 0, 0],
}
"""ControlNet controlnet-canny-sdxl-1.0-small, with 160 million parameters."""
CONTROLNET_UNION: Mapping[str, Any] = {**CONTROLNET, "num_control_type": 8}
"""Union xinsir/controlnet-union-sdxl-1.0, promax; its config_promax.json names ControlNetModel."""
