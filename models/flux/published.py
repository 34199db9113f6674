"""Configs of published Flux checkpoints: the fields that define the networks' shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import CLIP_L, T5_XXL
from models.vae.published import FLUX_1

TRANSFORMER: Mapping[str, Any] = {
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "axes_dims_rope": [16, 56, 56],
}

Checkpoint = Mapping[str, Mapping[str, Any]]
_SHARED: Checkpoint = {"text_encoder": CLIP_L, "text_encoder_2": T5_XXL, "vae": FLUX_1}

FLUX_DEV: Checkpoint = {"transformer": {**TRANSFORMER, "guidance_embeds": True}, **_SHARED}
FLUX_FILL: Checkpoint = {
    "transformer": {
        **TRANSFORMER,
        "in_channels": 4 * (2 * 16 + 8 * 8),  # latents, masked image's latents, mask pixels
        "out_channels": 64,
        "guidance_embeds": True,
    },
    **_SHARED,
}
FLUX_CONTROL: Checkpoint = {
    "transformer": {**TRANSFORMER, "in_channels": 128, "out_channels": 64, "guidance_embeds": True},
    **_SHARED,
}
"""Canny and Depth: channels of the latents and of the control image's latents."""
FLUX_SCHNELL: Checkpoint = {"transformer": {**TRANSFORMER, "guidance_embeds": False}, **_SHARED}
SIGLIP_SO400M: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
"""Image encoder of Redux: google/siglip-so400m-patch14-384 (config.json, vision_config)."""
REDUX: Checkpoint = {
    "image_encoder": SIGLIP_SO400M,
    "image_embedder": {"redux_dim": 1152, "txt_in_features": 4096},
}
"""FLUX.1-Redux-dev; the embedder's sizes are diffusers' defaults of ReduxImageEncoder."""
CONTROLNET: Mapping[str, Any] = {
    **TRANSFORMER,
    "patch_size": 1,
    "guidance_embeds": True,
}
CONTROLNET_UNION: Mapping[str, Any] = {
    **CONTROLNET,
    "num_layers": 5,
    "num_single_layers": 10,
    "num_mode": 10,
}
"""InstantX/FLUX.1-dev-Controlnet-Union (config.json), and Shakker-Labs' Union-Pro."""
CONTROLNET_UNION_PRO_2: Mapping[str, Any] = {
    **CONTROLNET,
    "num_layers": 6,
    "num_single_layers": 0,
}
"""Shakker-Labs/FLUX.1-dev-ControlNet-Union-Pro-2.0: six double blocks, no modes (its README)."""
