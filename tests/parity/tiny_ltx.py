"""Tiny random parts of LTX-2 checkpoints, built by diffusers itself."""

from __future__ import annotations

from typing import Any

from diffusers.pipelines.ltx2 import LTX2TextConnectors

from tests.parity.tiny import Config, randomize

CONNECTORS: Config = {
    "caption_channels": 12,
    "text_proj_in_factor": 5,
    "video_connector_num_attention_heads": 3,
    "video_connector_attention_head_dim": 8,
    "video_connector_num_learnable_registers": 4,
    "video_gated_attn": True,
    "audio_connector_num_attention_heads": 2,
    "audio_connector_attention_head_dim": 10,
    "audio_connector_num_layers": 3,
    "audio_connector_num_learnable_registers": 6,
    "audio_gated_attn": True,
    "connector_rope_base_seq_len": 64,
    "rope_type": "split",
    "per_modality_projections": True,
    "video_hidden_dim": 24,
    "audio_hidden_dim": 20,
    "proj_bias": True,
}
"""As in LTX-2.3."""
CONNECTORS_ODD: Config = {
    "caption_channels": 14,
    "text_proj_in_factor": 3,
    "video_connector_num_attention_heads": 1,
    "video_connector_attention_head_dim": 14,
    "video_connector_num_layers": 1,
    "video_connector_num_learnable_registers": None,
    "audio_connector_num_attention_heads": 7,
    "audio_connector_attention_head_dim": 2,
    "audio_connector_num_learnable_registers": 3,
    "connector_rope_base_seq_len": 17,
    "rope_theta": 300.0,
}
"""As in LTX-2.0, one stream without registers."""


def connectors(seed: int, **overrides: Any) -> LTX2TextConnectors:
    """Connectors of random weights."""
    return randomize(LTX2TextConnectors(**overrides), seed)  # type: ignore[return-value]
