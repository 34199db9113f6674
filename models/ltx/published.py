"""Configs of published LTX-2 checkpoints.

Source: diffusers' scripts/convert_ltx2_to_diffusers.py, whose configs are those of Lightricks/LTX-2
and of LTX-2.3's conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.sampling.published import FLOW_MATCH
from models.text.published import GEMMA3_12B

Config = Mapping[str, Any]

_TRANSFORMER_2_3: Config = {
    "rope_type": "split",
    "caption_channels": 3840,
    "num_layers": 48,
    "gated_attn": True,
    "cross_attn_mod": True,
    "audio_gated_attn": True,
    "audio_cross_attn_mod": True,
    "use_prompt_embeddings": False,
    "perturbed_attn": True,
}
_CONNECTORS_2_3: Config = {
    "video_connector_num_attention_heads": 32,
    "video_connector_num_layers": 8,
    "video_gated_attn": True,
    "audio_connector_num_attention_heads": 32,
    "audio_connector_attention_head_dim": 64,
    "audio_connector_num_layers": 8,
    "audio_gated_attn": True,
    "rope_type": "split",
    "per_modality_projections": True,
    "proj_bias": True,
}
_VAE_2_0: Config = {
    "decoder_causal": False,
    "spatial_compression_ratio": 32,
    "temporal_compression_ratio": 8,
}
_VAE_2_3: Config = {
    **_VAE_2_0,
    "block_out_channels": [256, 512, 1024, 1024],
    "decoder_block_out_channels": [256, 512, 512, 1024],
    "layers_per_block": [4, 6, 4, 2, 2],
    "decoder_layers_per_block": [4, 6, 4, 2, 2],
    "decoder_spatio_temporal_scaling": [True] * 4,
    "decoder_inject_noise": [False] * 5,
    "upsample_type": ["spatiotemporal", "spatiotemporal", "temporal", "spatial"],
    "upsample_residual": [False] * 4,
    "upsample_factor": [2, 2, 1, 2],
    "decoder_spatial_padding_mode": "zeros",
}
_AUDIO_VAE: Config = {"latent_channels": 8, "mel_bins": 64}
_VOCODER_2_0: Config = {
    "_class_name": "LTX2Vocoder",
    "in_channels": 128,
    "hidden_channels": 1024,
    "out_channels": 2,
    "upsample_kernel_sizes": [16, 15, 8, 4, 4],
    "upsample_factors": [6, 5, 2, 2, 2],
    "resnet_kernel_sizes": [3, 7, 11],
    "resnet_dilations": [[1, 3, 5]] * 3,
    "leaky_relu_negative_slope": 0.1,
    "output_sampling_rate": 24000,
}
_VOCODER_2_3: Config = {
    "_class_name": "LTX2VocoderWithBWE",
    "in_channels": 128,
    "hidden_channels": 1536,
    "out_channels": 2,
    "upsample_kernel_sizes": [11, 4, 4, 4, 4, 4],
    "upsample_factors": [5, 2, 2, 2, 2, 2],
    "resnet_kernel_sizes": [3, 7, 11],
    "resnet_dilations": [[1, 3, 5]] * 3,
    "act_fn": "snakebeta",
    "leaky_relu_negative_slope": 0.1,
    "antialias": True,
    "antialias_ratio": 2,
    "antialias_kernel_size": 12,
    "final_act_fn": None,
    "final_bias": False,
    "bwe_in_channels": 128,
    "bwe_hidden_channels": 512,
    "bwe_out_channels": 2,
    "bwe_upsample_kernel_sizes": [12, 11, 4, 4, 4],
    "bwe_upsample_factors": [6, 5, 2, 2, 2],
    "bwe_resnet_kernel_sizes": [3, 7, 11],
    "bwe_resnet_dilations": [[1, 3, 5]] * 3,
    "bwe_act_fn": "snakebeta",
    "bwe_leaky_relu_negative_slope": 0.1,
    "bwe_antialias": True,
    "bwe_antialias_ratio": 2,
    "bwe_antialias_kernel_size": 12,
    "bwe_final_act_fn": None,
    "bwe_final_bias": False,
    "filter_length": 512,
    "hop_length": 80,
    "window_length": 512,
    "num_mel_channels": 64,
    "input_sampling_rate": 16000,
    "output_sampling_rate": 48000,
}

SCHEDULER: Config = {
    **FLOW_MATCH,
    "use_dynamic_shifting": True,
    "base_image_seq_len": 1024,
    "base_shift": 0.95,
    "max_shift": 2.05,
    "shift_terminal": 0.1,
}

LTX_2: Mapping[str, Config] = {
    "transformer": {},
    "text_encoder": GEMMA3_12B,
    "connectors": {},
    "vae": _VAE_2_0,
    "audio_vae": _AUDIO_VAE,
    "vocoder": _VOCODER_2_0,
}
LTX_2_3: Mapping[str, Config] = {
    "transformer": _TRANSFORMER_2_3,
    "text_encoder": GEMMA3_12B,
    "connectors": _CONNECTORS_2_3,
    "vae": _VAE_2_3,
    "audio_vae": _AUDIO_VAE,
    "vocoder": _VOCODER_2_3,
}
"""Networks of LTX-2.3; omitted fields have the defaults of diffusers' networks."""
