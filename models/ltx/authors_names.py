"""Original layer and array names of the LTX-2 transformer, as used in single files.

Source: diffusers, single_file_utils.py, convert_ltx2_transformer_to_diffusers.
"""

from __future__ import annotations

from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames
from models.ltx.key_mapping import TRANSFORMER

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
