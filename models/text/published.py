"""Config values of published text encoders that several families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLIP_L: Mapping[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "projection_dim": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "eos_token_id": 2,
}
T5_XXL: Mapping[str, Any] = {
    "vocab_size": 32128,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}
QWEN3_4B: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "attention_bias": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
QWEN3_8B: Mapping[str, Any] = {
    **QWEN3_4B,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "tie_word_embeddings": False,
}
MISTRAL_SMALL_3: Mapping[str, Any] = {
    "text_config": {
        "vocab_size": 131072,
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0,
        "sliding_window": None,
        "hidden_act": "silu",
    },
}
QWEN2_5_VL_7B: Mapping[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
    "use_sliding_window": False,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}
_QWEN3_VL: Mapping[str, Any] = {
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "rope_scaling": {
        "mrope_interleaved": True,
        "mrope_section": [24, 20, 20],
        "rope_type": "default",
    },
    "attention_bias": False,
    "hidden_act": "silu",
}
_QWEN3_VL_VISION: Mapping[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
}
QWEN3_VL_4B: Mapping[str, Any] = {
    "text_config": {
        **_QWEN3_VL,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "tie_word_embeddings": True,
    },
    "vision_config": {
        **_QWEN3_VL_VISION,
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "out_hidden_size": 2560,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}
QWEN3_VL_8B: Mapping[str, Any] = {
    "text_config": {**_QWEN3_VL, "hidden_size": 4096, "intermediate_size": 12288},
    "vision_config": {
        **_QWEN3_VL_VISION,
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "out_hidden_size": 4096,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}
GEMMA3_12B: Mapping[str, Any] = {
    "text_config": {
        "vocab_size": 262208,
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "rms_norm_eps": 1e-06,
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
    },
}
