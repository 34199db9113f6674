"""Tiny random LTX-2 checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diffusers import FlowMatchEulerDiscreteScheduler, LTX2Pipeline
from transformers import GemmaTokenizer

from tests.parity import tiny_ltx
from tests.parity.tiny import WORDS, Config
from tests.parity.tiny_gemma import gemma3

SHIFTED: Config = {
    "use_dynamic_shifting": True,
    "base_shift": 0.95,
    "max_shift": 2.05,
    "base_image_seq_len": 1024,
    "max_image_seq_len": 4096,
    "shift_terminal": 0.1,
}
VIDEO_VAE: Config = {
    **tiny_ltx.VIDEO_VAE,
    "downsample_type": ("spatial", "spatiotemporal", "spatiotemporal"),
    "decoder_spatio_temporal_scaling": (True, True, True),
    "decoder_block_out_channels": (8, 8, 16),
    "decoder_layers_per_block": (1, 1, 1, 1),
    "decoder_inject_noise": (False,) * 4,
    "upsample_type": ("spatiotemporal", "spatiotemporal", "spatial"),
    "upsample_residual": (True, False, False),
    "upsample_factor": (2, 1, 2),
    "patch_size": 4,
    "spatial_compression_ratio": 32,
    "temporal_compression_ratio": 4,
}
"""One latent per 32 by 32 pixels and 4 frames."""
LIKE_2_3: dict[str, Config] = {
    "transformer": {
        **tiny_ltx.TRANSFORMER,
        "vae_scale_factors": (4, 32, 32),
        "audio_in_channels": 12,
        "audio_out_channels": None,
    },
    "connectors": tiny_ltx.CONNECTORS,
    "vae": VIDEO_VAE,
    "audio_vae": tiny_ltx.AUDIO_VAE,
    "vocoder": tiny_ltx.EXTENDED,
    "text_encoder": {},
    "scheduler": SHIFTED,
    "latent_upsampler": tiny_ltx.UPSAMPLER,
}
ODD: dict[str, Config] = {
    "transformer": {
        **tiny_ltx.TRANSFORMER_ODD,
        "in_channels": 4,
        "vae_scale_factors": (2, 6, 6),
        "audio_in_channels": 10,
        "audio_out_channels": None,
        "audio_scale_factor": 4,
        "audio_sampling_rate": 22050,
        "audio_hop_length": 256,
        "caption_channels": 14,
    },
    "connectors": {
        **tiny_ltx.CONNECTORS_ODD,
        "video_connector_num_learnable_registers": 5,
    },
    "vae": {
        **tiny_ltx.VIDEO_VAE_ODD,
        "spatial_compression_ratio": 6,
        "temporal_compression_ratio": 2,
    },
    "audio_vae": tiny_ltx.AUDIO_VAE_ODD,
    "vocoder": tiny_ltx.VOCODER_ODD,
    "text_encoder": {
        "hidden_size": 14,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "scheduler": {**SHIFTED, "shift_terminal": None, "time_shift_type": "linear"},
    "latent_upsampler": tiny_ltx.UPSAMPLER_ODD,
}
"""Structure of LTX-2.0: the transformer projects the text and has no perturbed attention."""


def gemma_tokenizer() -> GemmaTokenizer:
    """Tokenizer with pieces of a few words."""
    letters = [chr(code) for code in range(33, 127)]
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *letters]
    merges: list[tuple[str, str]] = []
    for word in WORDS.split():
        head = "▁"
        for letter in word:
            if head + letter not in pieces:
                merges.append((head, letter))
                pieces.append(head + letter)
            head += letter
    return GemmaTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, merges=merges)


def make_ltx(
    folder: Path, like: Mapping[str, Config] = LIKE_2_3, seed: int = 0, **overrides: Config
) -> Path:
    """Write a complete checkpoint in diffusers' layout to `folder` and return it.

    Sizes that the text encoder or the transformer share with the connectors follow from the former.

    Args:
        like: configs of all parts.
        overrides: single values of parts, by their names.
    """
    configs = {name: {**config, **overrides.get(name, {})} for name, config in like.items()}
    text = gemma3(seed + 1, **configs["text_encoder"])
    network = tiny_ltx.transformer(seed + 2, **configs["transformer"])
    states, sizes = text.config.text_config, network.config
    shared = {
        "caption_channels": states.hidden_size,
        "text_proj_in_factor": states.num_hidden_layers + 1,
    }
    if configs["connectors"].get("per_modality_projections"):
        shared |= {
            "video_connector_num_attention_heads": sizes.num_attention_heads,
            "video_connector_attention_head_dim": sizes.attention_head_dim,
            "audio_connector_num_attention_heads": sizes.audio_num_attention_heads,
            "audio_connector_attention_head_dim": sizes.audio_attention_head_dim,
            "video_hidden_dim": sizes.cross_attention_dim,
            "audio_hidden_dim": sizes.audio_cross_attention_dim,
        }
    LTX2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**configs["scheduler"]),
        vae=tiny_ltx.video_vae(seed + 3, **configs["vae"]),
        audio_vae=tiny_ltx.audio_vae(seed + 4, **configs["audio_vae"]),
        text_encoder=text,
        tokenizer=gemma_tokenizer(),
        connectors=tiny_ltx.connectors(seed + 5, **{**configs["connectors"], **shared}),
        transformer=network,
        vocoder=tiny_ltx.vocoder(seed + 6, **configs["vocoder"]),
    ).save_pretrained(folder)
    if upsampler := configs["latent_upsampler"]:
        network = tiny_ltx.latent_upsampler(seed + 7, **upsampler)
        network.save_pretrained(folder / "latent_upsampler")
    return folder
