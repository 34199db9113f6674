"""Maps array names of LTX-2 checkpoints, single files and adapters to parameter paths.

Source: diffusers' LTX-2 models; single_file_utils.py, convert_ltx2_transformer_to_diffusers, for
the original names; loaders/lora_conversion_utils.py,
_convert_non_diffusers_ltx2_lora_to_diffusers, for those of adapters.
"""

from __future__ import annotations

from typing import Any

from models.adapters.layer_names import Spelling
from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming
from models.ltx.vocoder_config import ExtendedVocoderConfig, VocoderConfig

_LEAVES = {"weight": "kernel", "bias": "bias"}


def attention(source: str, target: str) -> dict[str, str]:
    """Return rename rules of an attention layer's keys, without their common prefix."""
    layers = {
        **{rf"to_{parameter}": parameter for parameter in "qkv"},
        r"to_out\.0": "out",
        "to_gate_logits": "gate",
    }
    return {
        **{
            rf"{source}\.{name}\.{leaf}": f"{target}.{layer}.{to}"
            for name, layer in layers.items()
            for leaf, to in _LEAVES.items()
        },
        **{
            rf"{source}\.norm_{parameter}\.weight": f"{target}.{parameter}_norm.scale"
            for parameter in "qk"
        },
    }


def feed_forward(source: str, target: str) -> dict[str, str]:
    """Return rename rules of a feed-forward's keys, without their common prefix."""
    return {
        rf"{source}\.net\.{name}\.{leaf}": f"{target}.{layer}.{to}"
        for name, layer in ((r"0\.proj", "up"), ("2", "down"))
        for leaf, to in _LEAVES.items()
    }


_CONNECTOR = {**attention("attn1", "attention"), **feed_forward("ff", "feed_forward")}


def connector_renames(per_modality: bool) -> Renames:
    """Return rename rules of the keys of LTX-2's text connectors.

    Args:
        per_modality: whether each stream has a separate projection.
    """
    projections = (
        ("video_text_proj_in", "audio_text_proj_in") if per_modality else ("text_proj_in",)
    )
    return (
        *(
            (rf"{name}\.{leaf}", f"projections.{number}.{to}")
            for number, name in enumerate(projections)
            for leaf, to in _LEAVES.items()
        ),
        *(
            (
                rf"{stream}_connector\.transformer_blocks\.(\d+)\.{source}",
                rf"{stream}.blocks.{target}[\1]",
            )
            for stream in ("video", "audio")
            for source, target in _CONNECTOR.items()
        ),
        *(
            (rf"{stream}_connector\.learnable_registers", f"{stream}.registers")
            for stream in ("video", "audio")
        ),
    )


def _block(audio: str, cross: str, table: str) -> dict[str, str]:
    """Return rename rules of one stream of a block; `audio` is the prefix of the audio's names."""
    return {
        **attention(f"{audio}attn1", "self_attention"),
        **attention(f"{audio}attn2", "text_attention"),
        **attention(cross, "cross_attention"),
        **feed_forward(f"{audio}ff", "feed_forward"),
        f"{audio}scale_shift_table": "table",
        f"{audio}prompt_scale_shift_table": "text_table",
        table: "cross_table",
    }


def _ends(audio: str, scales: str, gate: str) -> dict[str, str]:
    """Return rename rules of one stream's input and output layers, without their leaves."""
    times = {
        f"{audio}time_embed": "time",
        f"{audio}prompt_adaln": "text_time",
        scales: "cross_time",
        gate: "gate_time",
    }
    return {
        f"{audio}proj_in": "tokens_in",
        f"{audio}proj_out": "tokens_out",
        rf"{audio}caption_projection\.linear_1": "text_in.up",
        rf"{audio}caption_projection\.linear_2": "text_in.down",
        **{rf"{source}\.linear": f"{target}.vectors.linear" for source, target in times.items()},
        **{
            rf"{source}\.emb\.timestep_embedder\.linear_{number}": f"{target}.embed.{place}"
            for source, target in times.items()
            for number, place in ((1, "first"), (2, "second"))
        },
    }


_VIDEO = _block("", "audio_to_video_attn", "video_a2v_cross_attn_scale_shift_table")
_AUDIO = _block("audio_", "video_to_audio_attn", "audio_a2v_cross_attn_scale_shift_table")
_ENDS = {
    "video": _ends("", "av_cross_attn_video_scale_shift", "av_cross_attn_video_a2v_gate"),
    "audio": _ends("audio_", "av_cross_attn_audio_scale_shift", "av_cross_attn_audio_v2a_gate"),
}

TRANSFORMER: Renames = (
    *(
        (rf"transformer_blocks\.(\d+)\.{source}", rf"blocks.{stream}.{target}[\1]")
        for stream, names in (("video", _VIDEO), ("audio", _AUDIO))
        for source, target in names.items()
    ),
    *(
        (rf"{source}\.{leaf}", f"{stream}.{target}.{to}")
        for stream, names in _ENDS.items()
        for source, target in names.items()
        for leaf, to in _LEAVES.items()
    ),
    ("scale_shift_table", "video.table"),
    ("audio_scale_shift_table", "audio.table"),
)
"""Renames of LTX-2's transformer keys."""


_BLOCK = {
    **{
        rf"conv{number}\.conv\.{leaf}": f"{target}.conv.{to}"
        for number, target in ((1, "first"), (2, "second"))
        for leaf, to in _LEAVES.items()
    },
    r"norm3\.weight": "around_norm.scale",
    r"norm3\.bias": "around_norm.bias",
    **{rf"conv_shortcut\.{leaf}": f"around.{to}" for leaf, to in _LEAVES.items()},
}
_RESAMPLING = (
    (r"encoder\.down_blocks\.(\d+)\.downsamplers\.0\.conv\.conv", r"down.\1.down.conv"),
    (r"decoder\.up_blocks\.(\d+)\.upsamplers\.0\.conv\.conv", r"up.\1.up.conv"),
    *(
        (rf"{part}\.conv_{end}\.conv", f"{part}_{end}")
        for part in ("encoder", "decoder")
        for end in ("in", "out")
    ),
)

VIDEO_VAE: Renames = (
    *(
        (rf"{source}\.{name}", f"{target}.{layer}")
        for source, target in (
            (r"encoder\.down_blocks\.(\d+)\.resnets\.(\d+)", r"down.\1.blocks.\2"),
            (r"decoder\.up_blocks\.(\d+)\.resnets\.(\d+)", r"up.\1.blocks.\2"),
            (r"decoder\.up_blocks\.(\d+)\.conv_in", r"up.\1.enter"),
            (r"encoder\.mid_block\.resnets\.(\d+)", r"encoder_mid.\1"),
            (r"decoder\.mid_block\.resnets\.(\d+)", r"decoder_mid.\1"),
        )
        for name, layer in _BLOCK.items()
    ),
    *(
        (rf"{source}\.{leaf}", f"{target}.conv.{to}")
        for source, target in _RESAMPLING
        for leaf, to in _LEAVES.items()
    ),
    ("latents_mean", "latents_mean"),
    ("latents_std", "latents_std"),
)
"""Renames of the video autoencoder's keys."""


_UPSAMPLER_BLOCK = {
    f"{source}{number}": f"{target}{layer}"
    for source, layer in (("conv", ""), ("norm", "_norm"))
    for number, target in ((1, "first"), (2, "second"))
}
_UPSAMPLER = {
    "initial_conv": "enter",
    "initial_norm": "enter_norm",
    r"upsampler\.(?:0|conv)": "up",
    "final_conv": "leave",
    **{
        rf"{source}\.(\d+)\.{name}": rf"{target}.\1.{layer}"
        for source, target in (("res_blocks", "before"), ("post_upsample_res_blocks", "behind"))
        for name, layer in _UPSAMPLER_BLOCK.items()
    },
}

LATENT_UPSAMPLER: Renames = (
    *(
        (rf"{source}\.weight", f"{target}.{'scale' if target.endswith('norm') else 'kernel'}")
        for source, target in _UPSAMPLER.items()
    ),
    *((rf"{source}\.bias", f"{target}.bias") for source, target in _UPSAMPLER.items()),
    (r"upsampler\.blur_down\.kernel", ""),
)
"""Renames of the latent upsampler's keys, in diffusers' layout and in the original files."""


_MEL_LAYERS = {
    r"decoder\.conv_in\.conv": "enter",
    r"decoder\.conv_out\.conv": "leave",
    r"decoder\.up\.(\d+)\.upsample\.conv\.conv": r"levels.\1.up",
    **{
        rf"{source}\.{name}\.conv": f"{target}.{layer}"
        for source, target in (
            (r"decoder\.mid\.block_1", "mid.0"),
            (r"decoder\.mid\.block_2", "mid.1"),
            (r"decoder\.up\.(\d+)\.block\.(\d+)", r"levels.\1.blocks.\2"),
        )
        for name, layer in (("conv1", "first"), ("conv2", "second"), ("nin_shortcut", "around"))
    },
}

AUDIO_VAE: Renames = (
    *(
        (rf"{source}\.{leaf}", f"{target}.{to}")
        for source, target in _MEL_LAYERS.items()
        for leaf, to in _LEAVES.items()
    ),
    ("latents_mean", "latents_mean"),
    ("latents_std", "latents_std"),
    (r"encoder\..*", ""),
)
"""Renames of the audio decoder's keys."""

_ACTIVATION = {
    **{rf"act\.{parameter}": f"activation.{parameter}" for parameter in ("alpha", "beta")},
    **{parameter: parameter for parameter in ("alpha", "beta")},
    r"upsample\.filter": "up",
    r"downsample\.filter": "down",
}


def vocoder_renames(config: VocoderConfig | ExtendedVocoderConfig) -> Renames:
    """Return rename rules of a vocoder's keys."""
    if isinstance(config, VocoderConfig):
        return _vocoder("", "", config)
    return (
        *_vocoder(r"vocoder\.", "vocoder.", config.vocoder),
        *_vocoder(r"bwe_generator\.", "extension.", config.extension),
        (r"mel_stft\.stft_fn\.forward_basis", "fourier.kernel"),
        (r"mel_stft\.stft_fn\.inverse_basis", ""),
        (r"mel_stft\.mel_basis", "mel.kernel"),
    )


def _vocoder(source: str, target: str, config: VocoderConfig) -> Renames:
    """Return one vocoder's rename rules; the checkpoint numbers its stacks across all levels."""
    per_level = len(config.resnet_kernel_sizes)
    stacks = {
        rf"{source}resnets\.{level * per_level + number}": f"{target}levels.{level}.stacks.{number}"
        for level in range(len(config.upsample_factors))
        for number in range(per_level)
    }
    layers = {
        rf"{source}conv_in": f"{target}enter",
        rf"{source}conv_out": f"{target}leave",
        rf"{source}upsamplers\.(\d+)": rf"{target}levels.\1.up",
        **{
            rf"{stack_source}\.convs{number}\.(\d+)": rf"{stack_target}.{layer}.\1"
            for stack_source, stack_target in stacks.items()
            for number, layer in ((1, "first"), (2, "second"))
        },
    }
    activations = {
        rf"{source}act_out": f"{target}before_leave",
        **{
            rf"{stack_source}\.acts{number}\.(\d+)": rf"{stack_target}.{layer}.\1"
            for stack_source, stack_target in stacks.items()
            for number, layer in ((1, "before_first"), (2, "before_second"))
        },
    }
    return tuple(
        (rf"{a}\.{leaf}", f"{b}.{to}")
        for names, leaves in ((layers, _LEAVES), (activations, _ACTIVATION))
        for a, b in names.items()
        for leaf, to in leaves.items()
    )


_TIMES = {
    "adaln_single": "time_embed",
    "audio_adaln_single": "audio_time_embed",
    "prompt_adaln_single": "prompt_adaln",
    "audio_prompt_adaln_single": "audio_prompt_adaln",
    "av_ca_video_scale_shift_adaln_single": "av_cross_attn_video_scale_shift",
    "av_ca_audio_scale_shift_adaln_single": "av_cross_attn_audio_scale_shift",
    "av_ca_a2v_gate_adaln_single": "av_cross_attn_video_a2v_gate",
    "av_ca_v2a_gate_adaln_single": "av_cross_attn_audio_v2a_gate",
}
_IN_TIME = (
    "linear",
    *(f"emb.timestep_embedder.linear_{number}" for number in (1, 2)),
)

LAYERS: Fused = {
    "patchify_proj": ("proj_in",),
    "audio_patchify_proj": ("audio_proj_in",),
    **{
        f"{source}.{layer}": (f"{target}.{layer}",)
        for source, target in _TIMES.items()
        for layer in _IN_TIME
    },
}
"""Original layer names → diffusers' names. Unlisted layers have the same name in both."""

_TABLES = {
    "scale_shift_table_a2v_ca_video": "video",
    "scale_shift_table_a2v_ca_audio": "audio",
}
_ATTENTIONS = {
    "attn1": "video.self_attention",
    "attn2": "video.text_attention",
    "audio_to_video_attn": "video.cross_attention",
    "audio_attn1": "audio.self_attention",
    "audio_attn2": "audio.text_attention",
    "video_to_audio_attn": "audio.cross_attention",
}

AUTHORS_RENAMES: Renames = (
    (r"(?:video|audio)_embeddings_connector\..+", ""),
    *authors_renames(LAYERS, TRANSFORMER),
    *(
        (rf"transformer_blocks\.(\d+)\.{source}", rf"blocks.{stream}.cross_table[\1]")
        for source, stream in _TABLES.items()
    ),
    *(
        (
            rf"transformer_blocks\.(\d+)\.{source}\.{projection}_norm\.weight",
            rf"blocks.{target}.{projection}_norm.scale[\1]",
        )
        for source, target in _ATTENTIONS.items()
        for projection in "qk"
    ),
    *TRANSFORMER,
)
"""Keys of the transformer with the original names → paths."""

NAMINGS = (
    Naming(TRANSFORMER_PREFIXES, "audio_patchify_proj.weight", AUTHORS_RENAMES),
    Naming(TRANSFORMER_PREFIXES, "audio_proj_in.weight", TRANSFORMER),
)
"""Array naming schemes of LTX-2 in single files."""

TRANSFORMER_SPELLING = Spelling(TRANSFORMER, fused=lambda network: LAYERS)


_CONNECTOR_BLOCKS: Fused = {
    f"{stream}_embeddings_connector.transformer_1d_blocks.{{}}.{layer}": (
        f"{stream}_connector.transformer_blocks.{{}}.{layer}",
    )
    for stream in ("video", "audio")
    for layer in (
        *(f"attn1.to_{part}" for part in ("q", "k", "v", "out.0", "gate_logits")),
        *("ff.net.0.proj", "ff.net.2"),
    )
}
"""Original names of the connectors' layers, which are a part of the original transformer."""


def _projections(network: Any) -> Fused:
    """Return the original names of the connectors, and diffusers' name of a shared projection."""
    video, audio = "video_text_proj_in", "audio_text_proj_in"
    if network.config.per_modality_projections:
        projections: Fused = {"video_aggregate_embed": (video,), "audio_aggregate_embed": (audio,)}
    else:
        projections = {"aggregate_embed": (video,), "text_proj_in": (video,)}
    return {**projections, **_CONNECTOR_BLOCKS}


CONNECTORS_SPELLING = Spelling(
    (*connector_renames(per_modality=True), *connector_renames(per_modality=False)),
    network="connectors",
    dotted=(
        *("connectors.", "text_embedding_projection."),
        *("diffusion_model.", "model.diffusion_model.", "base_model.model.", ""),
    ),
    underscored=(),
    fused=_projections,
)

SPELLINGS = (TRANSFORMER_SPELLING, CONNECTORS_SPELLING)
"""Layer names of LTX-2 in adapter files."""
