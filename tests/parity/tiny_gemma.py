"""Tiny random Gemma 3 encoders, built by transformers itself."""

from __future__ import annotations

from typing import Any

from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from tests.parity.tiny import Config, randomize

VOCABULARY = 257

GEMMA3: Config = {
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "rms_norm_eps": 1e-5,
    "query_pre_attn_scalar": 12,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}
_VISION: Config = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}


def gemma3(seed: int, **overrides: Any) -> Gemma3ForConditionalGeneration:
    """Complete Gemma 3 with random weights."""
    values = {"vocab_size": VOCABULARY, **GEMMA3, **overrides}
    config = Gemma3Config(
        text_config=values,
        vision_config=_VISION,
        mm_tokens_per_image=4,
        image_token_index=VOCABULARY - 1,
    )
    model = randomize(Gemma3ForConditionalGeneration(config), seed)
    for name, parameter in model.named_parameters():
        if "norm" in name and parameter.ndim == 1:
            parameter.data -= parameter.data.mean().round()  # scales are offsets from one
    return model
