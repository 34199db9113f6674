"""Names in a diffusers checkpoint of LTX-2 → paths in its networks."""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames
from models.ltx.vocoder_config import ExtendedVocoderConfig, VocoderConfig

_LEAVES = {"weight": "kernel", "bias": "bias"}


def attention(theirs: str, ours: str) -> dict[str, str]:
    """Names of one attention; both sides name what is before the leaf."""
    layers = {
        **{rf"to_{one}": one for one in "qkv"},
        r"to_out\.0": "out",
        "to_gate_logits": "gate",
    }
    return {
        **{
            rf"{theirs}\.{name}\.{leaf}": f"{ours}.{own}.{to}"
            for name, own in layers.items()
            for leaf, to in _LEAVES.items()
        },
        **{rf"{theirs}\.norm_{one}\.weight": f"{ours}.{one}_norm.scale" for one in "qk"},
    }


def feed_forward(theirs: str, ours: str) -> dict[str, str]:
    """Names of one feed-forward."""
    return {
        rf"{theirs}\.net\.{name}\.{leaf}": f"{ours}.{own}.{to}"
        for name, own in ((r"0\.proj", "up"), ("2", "down"))
        for leaf, to in _LEAVES.items()
    }


_CONNECTOR = {**attention("attn1", "attention"), **feed_forward("ff", "feed_forward")}


def connector_renames(per_modality: bool) -> Renames:
    """Names of the connectors.

    Args:
        per_modality: whether each stream has a projection of its own.
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
                rf"{stream}_connector\.transformer_blocks\.(\d+)\.{theirs}",
                rf"{stream}.blocks.{ours}[\1]",
            )
            for stream in ("video", "audio")
            for theirs, ours in _CONNECTOR.items()
        ),
        *(
            (rf"{stream}_connector\.learnable_registers", f"{stream}.registers")
            for stream in ("video", "audio")
        ),
    )


def _block(audio: str, cross: str, table: str) -> dict[str, str]:
    """Names of one stream of a block; `audio` begins those of the audio's."""
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
    """Names of what is before and behind one stream's blocks, without their leaves."""
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
        **{rf"{theirs}\.linear": f"{ours}.vectors.linear" for theirs, ours in times.items()},
        **{
            rf"{theirs}\.emb\.timestep_embedder\.linear_{number}": f"{ours}.embed.{place}"
            for theirs, ours in times.items()
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
        (rf"transformer_blocks\.(\d+)\.{theirs}", rf"blocks.{stream}.{ours}[\1]")
        for stream, names in (("video", _VIDEO), ("audio", _AUDIO))
        for theirs, ours in names.items()
    ),
    *(
        (rf"{theirs}\.{leaf}", f"{stream}.{ours}.{to}")
        for stream, names in _ENDS.items()
        for theirs, ours in names.items()
        for leaf, to in _LEAVES.items()
    ),
    ("scale_shift_table", "video.table"),
    ("audio_scale_shift_table", "audio.table"),
)
"""Names of the transformer of video and audio."""


_BLOCK = {
    **{
        rf"conv{number}\.conv\.{leaf}": f"{ours}.conv.{to}"
        for number, ours in ((1, "first"), (2, "second"))
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
        (rf"{theirs}\.{name}", f"{ours}.{own}")
        for theirs, ours in (
            (r"encoder\.down_blocks\.(\d+)\.resnets\.(\d+)", r"down.\1.blocks.\2"),
            (r"decoder\.up_blocks\.(\d+)\.resnets\.(\d+)", r"up.\1.blocks.\2"),
            (r"decoder\.up_blocks\.(\d+)\.conv_in", r"up.\1.enter"),
            (r"encoder\.mid_block\.resnets\.(\d+)", r"encoder_mid.\1"),
            (r"decoder\.mid_block\.resnets\.(\d+)", r"decoder_mid.\1"),
        )
        for name, own in _BLOCK.items()
    ),
    *(
        (rf"{theirs}\.{leaf}", f"{ours}.conv.{to}")
        for theirs, ours in _RESAMPLING
        for leaf, to in _LEAVES.items()
    ),
    ("latents_mean", "latents_mean"),
    ("latents_std", "latents_std"),
)
"""Names of the video autoencoder."""


_UPSAMPLER_BLOCK = {
    f"{theirs}{number}": f"{ours}{own}"
    for theirs, own in (("conv", ""), ("norm", "_norm"))
    for number, ours in ((1, "first"), (2, "second"))
}
_UPSAMPLER = {
    "initial_conv": "enter",
    "initial_norm": "enter_norm",
    r"upsampler\.(?:0|conv)": "up",
    "final_conv": "leave",
    **{
        rf"{theirs}\.(\d+)\.{name}": rf"{ours}.\1.{own}"
        for theirs, ours in (("res_blocks", "before"), ("post_upsample_res_blocks", "behind"))
        for name, own in _UPSAMPLER_BLOCK.items()
    },
}

LATENT_UPSAMPLER: Renames = (
    *(
        (rf"{theirs}\.weight", f"{ours}.{'scale' if ours.endswith('norm') else 'kernel'}")
        for theirs, ours in _UPSAMPLER.items()
    ),
    *((rf"{theirs}\.bias", f"{ours}.bias") for theirs, ours in _UPSAMPLER.items()),
    (r"upsampler\.blur_down\.kernel", ""),
)
"""Names of the latent upsampler, in diffusers' layout and in the authors' files."""


_MEL_LAYERS = {
    r"decoder\.conv_in\.conv": "enter",
    r"decoder\.conv_out\.conv": "leave",
    r"decoder\.up\.(\d+)\.upsample\.conv\.conv": r"levels.\1.up",
    **{
        rf"{theirs}\.{name}\.conv": f"{ours}.{own}"
        for theirs, ours in (
            (r"decoder\.mid\.block_1", "mid.0"),
            (r"decoder\.mid\.block_2", "mid.1"),
            (r"decoder\.up\.(\d+)\.block\.(\d+)", r"levels.\1.blocks.\2"),
        )
        for name, own in (("conv1", "first"), ("conv2", "second"), ("nin_shortcut", "around"))
    },
}

AUDIO_VAE: Renames = (
    *(
        (rf"{theirs}\.{leaf}", f"{ours}.{to}")
        for theirs, ours in _MEL_LAYERS.items()
        for leaf, to in _LEAVES.items()
    ),
    ("latents_mean", "latents_mean"),
    ("latents_std", "latents_std"),
    (r"encoder\..*", ""),
)
"""Names of the audio autoencoder's decoder."""

_ACTIVATION = {
    **{rf"act\.{one}": f"activation.{one}" for one in ("alpha", "beta")},
    **{one: one for one in ("alpha", "beta")},
    r"upsample\.filter": "up",
    r"downsample\.filter": "down",
}


def vocoder_renames(config: VocoderConfig | ExtendedVocoderConfig) -> Renames:
    """Names of a vocoder."""
    if isinstance(config, VocoderConfig):
        return _vocoder("", "", config)
    return (
        *_vocoder(r"vocoder\.", "vocoder.", config.vocoder),
        *_vocoder(r"bwe_generator\.", "extension.", config.extension),
        (r"mel_stft\.stft_fn\.forward_basis", "fourier.kernel"),
        (r"mel_stft\.stft_fn\.inverse_basis", ""),
        (r"mel_stft\.mel_basis", "mel.kernel"),
    )


def _vocoder(theirs: str, ours: str, config: VocoderConfig) -> Renames:
    """Names of one vocoder, whose stacks of convolutions the checkpoint counts over all levels."""
    per_level = len(config.resnet_kernel_sizes)
    stacks = {
        rf"{theirs}resnets\.{level * per_level + number}": f"{ours}levels.{level}.stacks.{number}"
        for level in range(len(config.upsample_factors))
        for number in range(per_level)
    }
    layers = {
        rf"{theirs}conv_in": f"{ours}enter",
        rf"{theirs}conv_out": f"{ours}leave",
        rf"{theirs}upsamplers\.(\d+)": rf"{ours}levels.\1.up",
        **{
            rf"{theirs_}\.convs{number}\.(\d+)": rf"{ours_}.{own}.\1"
            for theirs_, ours_ in stacks.items()
            for number, own in ((1, "first"), (2, "second"))
        },
    }
    activations = {
        rf"{theirs}act_out": f"{ours}before_leave",
        **{
            rf"{theirs_}\.acts{number}\.(\d+)": rf"{ours_}.{own}.\1"
            for theirs_, ours_ in stacks.items()
            for number, own in ((1, "before_first"), (2, "before_second"))
        },
    }
    return tuple(
        (rf"{a}\.{leaf}", f"{b}.{to}")
        for names, leaves in ((layers, _LEAVES), (activations, _ACTIVATION))
        for a, b in names.items()
        for leaf, to in leaves.items()
    )
