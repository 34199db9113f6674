"""Tiny random parts of LTX-2 checkpoints, built by diffusers itself."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    LTX2VideoTransformer3DModel,
)
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder, LTX2VocoderWithBWE

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
"""Structure of LTX-2.3."""
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
"""Structure of LTX-2.0, with one stream without registers."""


def connectors(seed: int, **overrides: Any) -> LTX2TextConnectors:
    """Connectors with random weights."""
    return randomize(LTX2TextConnectors(**overrides), seed)


TRANSFORMER: Config = {
    "in_channels": 6,
    "out_channels": 6,
    "num_attention_heads": 3,
    "attention_head_dim": 14,
    "cross_attention_dim": 42,
    "base_height": 200,
    "base_width": 240,
    "gated_attn": True,
    "cross_attn_mod": True,
    "audio_in_channels": 10,
    "audio_out_channels": 10,
    "audio_num_attention_heads": 3,
    "audio_attention_head_dim": 8,
    "audio_cross_attention_dim": 24,
    "audio_gated_attn": True,
    "audio_cross_attn_mod": True,
    "num_layers": 3,
    "rope_type": "split",
    "use_prompt_embeddings": False,
    "perturbed_attn": True,
}
"""Structure of LTX-2.3."""
TRANSFORMER_ODD: Config = {
    "in_channels": 5,
    "out_channels": None,
    "num_attention_heads": 1,
    "attention_head_dim": 22,
    "cross_attention_dim": 22,
    "vae_scale_factors": (4, 10, 12),
    "pos_embed_max_pos": 7,
    "base_height": 100,
    "base_width": 90,
    "audio_in_channels": 3,
    "audio_out_channels": 3,
    "audio_num_attention_heads": 1,
    "audio_attention_head_dim": 18,
    "audio_cross_attention_dim": 18,
    "audio_scale_factor": 3,
    "audio_pos_embed_max_pos": 9,
    "audio_sampling_rate": 8000,
    "audio_hop_length": 200,
    "num_layers": 2,
    "norm_eps": 1e-3,
    "caption_channels": 13,
    "attention_bias": False,
    "attention_out_bias": False,
    "rope_theta": 500.0,
    "causal_offset": 2,
    "cross_attn_timestep_scale_multiplier": 300,
    "ff_bias": False,
}
"""Structure of LTX-2.0: the transformer projects the text, and time does not modulate it."""


def transformer(seed: int, **overrides: Any) -> Any:
    """Transformer with random weights."""
    network: Any = LTX2VideoTransformer3DModel(**overrides)
    return randomize(network, seed)


VIDEO_VAE: Config = {
    "frames": 9,
    "sides": (16, 24),
    "latent_channels": 6,
    "block_out_channels": (8, 16, 32),
    "down_block_types": ("LTX2VideoDownBlock3D",) * 3,
    "decoder_block_out_channels": (8, 16),
    "layers_per_block": (1, 2, 1, 1),
    "decoder_layers_per_block": (2, 1, 1),
    "spatio_temporal_scaling": (True, True, True),
    "decoder_spatio_temporal_scaling": (True, True),
    "decoder_inject_noise": (False, False, False),
    "downsample_type": ("spatial", "temporal", "spatiotemporal"),
    "upsample_type": ("spatiotemporal", "spatiotemporal"),
    "upsample_residual": (True, True),
    "upsample_factor": (2, 2),
    "patch_size": 2,
    "decoder_causal": False,
}
"""Published structure; frames and sides are those of an encoded video."""
VIDEO_VAE_ODD: Config = {
    "frames": 5,
    "sides": (12, 18),
    "latent_channels": 4,
    "block_out_channels": (4, 16),
    "down_block_types": ("LTX2VideoDownBlock3D",) * 2,
    "decoder_block_out_channels": (7, 6, 12),
    "layers_per_block": (1, 1, 2),
    "decoder_layers_per_block": (1, 2, 1, 2),
    "spatio_temporal_scaling": (False, True),
    "decoder_spatio_temporal_scaling": (True, False, True),
    "decoder_inject_noise": False,
    "downsample_type": ("spatial", "spatiotemporal"),
    "upsample_type": ("spatial", "temporal", "temporal"),
    "upsample_residual": (False, False, True),
    "upsample_factor": (1, 1, 2),
    "patch_size": 3,
    "resnet_norm_eps": 1e-2,
    "encoder_causal": False,
    "decoder_causal": True,
    "encoder_spatial_padding_mode": "reflect",
    "decoder_spatial_padding_mode": "zeros",
}
"""Levels that change their width or do not resample, and causal decoding."""


def video_vae(seed: int, frames: int, sides: tuple[int, int], **overrides: Any) -> Any:
    """Video autoencoder with random weights and statistics far from 0 and 1."""
    network: Any = AutoencoderKLLTX2Video(**overrides)
    randomize(network, seed)
    _draw_statistics(network, seed)
    network.decoder.conv_out.conv.weight.data *= 0.5  # most pixels inside [-1, 1]
    return network


AUDIO_VAE: Config = {
    "base_channels": 12,
    "output_channels": 2,
    "ch_mult": (1, 2, 4),
    "num_res_blocks": 2,
    "in_channels": 2,
    "latent_channels": 3,
    "mel_bins": 16,
}
"""Published structure, but narrower."""
AUDIO_VAE_ODD: Config = {
    "base_channels": 10,
    "output_channels": 1,
    "ch_mult": (3, 1),
    "num_res_blocks": 1,
    "in_channels": 1,
    "latent_channels": 2,
    "sample_rate": 22050,
    "mel_hop_length": 256,
    "mel_bins": 21,
}
"""One channel, and too few levels for its compression: missing frames and bins are zeros."""


def audio_vae(seed: int, **overrides: Any) -> Any:
    """Audio autoencoder with random weights and statistics far from 0 and 1."""
    network: Any = AutoencoderKLLTX2Audio(**overrides)
    randomize(network, seed)
    _draw_statistics(network, seed)
    return network


VOCODER: Config = {
    "in_channels": 32,
    "hidden_channels": 16,
    "upsample_kernel_sizes": [16, 15],
    "upsample_factors": [6, 5],
    "resnet_kernel_sizes": [3, 7],
    "resnet_dilations": [[1, 3], [1, 5]],
    "output_sampling_rate": 24000,
}
"""Structure of LTX-2.0."""
VOCODER_ODD: Config = {
    "in_channels": 21,
    "hidden_channels": 12,
    "out_channels": 1,
    "upsample_kernel_sizes": [5, 6],
    "upsample_factors": [2, 3],
    "resnet_kernel_sizes": [4],
    "resnet_dilations": [[2, 3, 1]],
    "act_fn": "snake",
    "antialias": True,
    "antialias_ratio": 3,
    "antialias_kernel_size": 11,
    "final_act_fn": "clamp",
    "final_bias": False,
    "output_sampling_rate": 8000,
}
"""One channel, even windows, odd filters, and upsampling with a remaining sample."""
EXTENDED: Config = {
    **VOCODER,
    "upsample_kernel_sizes": [11, 4],
    "upsample_factors": [5, 2],
    "act_fn": "snakebeta",
    "antialias": True,
    "final_act_fn": None,
    "final_bias": False,
    "bwe_in_channels": 12,
    "bwe_hidden_channels": 8,
    "bwe_upsample_kernel_sizes": [12, 4],
    "bwe_upsample_factors": [6, 2],
    "bwe_resnet_kernel_sizes": [3],
    "bwe_resnet_dilations": [[1, 3]],
    "filter_length": 16,
    "hop_length": 4,
    "window_length": 16,
    "num_mel_channels": 6,
    "input_sampling_rate": 1000,
    "output_sampling_rate": 3000,
}
"""Structure of LTX-2.3."""
EXTENDED_ODD: Config = {
    **VOCODER_ODD,
    "bwe_in_channels": 5,
    "bwe_out_channels": 1,
    "bwe_hidden_channels": 8,
    "bwe_upsample_kernel_sizes": [9],
    "bwe_upsample_factors": [7],
    "bwe_resnet_kernel_sizes": [3, 5],
    "bwe_resnet_dilations": [[2], [1]],
    "bwe_act_fn": "leaky_relu",
    "bwe_leaky_relu_negative_slope": 0.3,
    "bwe_antialias": False,
    "bwe_final_act_fn": "tanh",
    "bwe_final_bias": True,
    "filter_length": 12,
    "hop_length": 7,
    "window_length": 12,
    "num_mel_channels": 5,
    "input_sampling_rate": 8000,
    "output_sampling_rate": 8000,
}
"""The extension adds no rate, and the window's step does not divide the number of samples."""


def vocoder(seed: int, **overrides: Any) -> Any:
    """Vocoder with random weights, and filters that differ from the initial ones."""
    kind = LTX2VocoderWithBWE if "filter_length" in overrides else LTX2Vocoder
    network: Any = kind(**overrides)
    randomize(network, seed)
    generator = torch.Generator("cpu").manual_seed(seed)
    for name, filter in network.named_buffers():
        noise = torch.randn(filter.shape, generator=generator)
        if name.endswith(".filter") and not name.startswith("resampler"):
            filter.copy_(filter * (1 + 0.1 * noise))
        elif name.endswith("basis"):
            filter.copy_(noise.abs() if "mel_basis" in name else noise)
    for name, parameter in network.named_parameters():
        if "conv_out." in name:
            parameter.data *= 0.1  # most samples inside [-1, 1]
    return network


def _draw_statistics(network: Any, seed: int) -> None:
    generator = torch.Generator("cpu").manual_seed(seed)
    channels = network.latents_mean.shape
    network.latents_mean.copy_(0.3 * torch.randn(channels, generator=generator))
    network.latents_std.copy_(0.5 + torch.rand(channels, generator=generator))


UPSAMPLER: Config = {"in_channels": 6, "mid_channels": 64, "num_blocks_per_stage": 2}
"""Published structure."""
UPSAMPLER_ODD: Config = {
    "in_channels": 4,
    "mid_channels": 32,
    "num_blocks_per_stage": 1,
    "use_rational_resampler": False,
}


def latent_upsampler(seed: int, **overrides: Any) -> LTX2LatentUpsamplerModel:
    """Latent upsampler with random weights."""
    return randomize(LTX2LatentUpsamplerModel(**overrides), seed)
