"""Names in a diffusers checkpoint of the FLUX.2 transformer → paths in `Flux2Transformer`."""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames

_LAYERS = {
    "x_embedder": "latents_in",
    "context_embedder": "text_in",
    r"time_guidance_embed\.timestep_embedder\.linear_1": "conditions.time_in.first",
    r"time_guidance_embed\.timestep_embedder\.linear_2": "conditions.time_in.second",
    r"double_stream_modulation_img\.linear": "conditions.image_modulation.linear",
    r"double_stream_modulation_txt\.linear": "conditions.text_modulation.linear",
    r"single_stream_modulation\.linear": "conditions.single_modulation.linear",
    r"norm_out\.linear": "conditions.out_modulation.linear",
    "proj_out": "latents_out",
}


def _stream(ours: str, project: str, qk: str, out: str, feed_forward: str) -> dict[str, str]:
    """Names of one stream of the double blocks; `project` names a projection of q, k or v."""
    return {
        **{rf"attn\.{project.format(one)}": f"{ours}.attention.{one}.kernel" for one in "qkv"},
        **{rf"attn\.norm_{qk}{one}": f"{ours}.attention.{one}_norm.scale" for one in "qk"},
        rf"attn\.{out}": f"{ours}.out.kernel",
        rf"{feed_forward}\.linear_in": f"{ours}.feed_forward.{{gate,up}}.kernel",
        rf"{feed_forward}\.linear_out": f"{ours}.feed_forward.down.kernel",
    }


_DOUBLE = {
    **_stream("image", "to_{}", "", r"to_out\.0", "ff"),
    **_stream("text", "add_{}_proj", "added_", "to_add_out", "ff_context"),
}
_SINGLE = {
    r"attn\.to_qkv_mlp_proj": "{heads.q,heads.k,heads.v,gate,up}.kernel",
    r"attn\.to_out": "down.kernel",
    **{rf"attn\.norm_{one}": f"heads.{one}_norm.scale" for one in "qk"},
}

RENAMES: Renames = (
    *((rf"{theirs}\.weight", f"{ours}.kernel") for theirs, ours in _LAYERS.items()),
    *(
        (rf"{blocks}\.(\d+)\.{theirs}\.weight", rf"{place}.{ours}[\1]")
        for blocks, place, names in (
            ("transformer_blocks", "double_blocks", _DOUBLE),
            ("single_transformer_blocks", "single_blocks", _SINGLE),
        )
        for theirs, ours in names.items()
    ),
)
