"""Names in a diffusers checkpoint of the Flux transformer → paths in `FluxTransformer`."""

from __future__ import annotations

Renames = tuple[tuple[str, str], ...]


def _both(name: str, path: str) -> Renames:
    """A linear layer's two arrays; `[layer]` in the path stays behind the leaf's name."""
    path, bracket, layer = path.partition("[")
    return (
        (rf"{name}\.weight", f"{path}.kernel{bracket}{layer}"),
        (rf"{name}\.bias", f"{path}.bias{bracket}{layer}"),
    )


def _stream(ours: str, norm: str, project: str, qk: str, out: str, feed_forward: str) -> Renames:
    """Renames of one stream of the double blocks; `project` names a projection of q, k or v."""
    block, path = r"transformer_blocks\.(\d+)\.", f"double_blocks.{ours}"
    return (
        *_both(rf"{block}{norm}\.linear", rf"conditions.{ours}_modulation.linear[\1]"),
        *_both(rf"{block}attn\.{project.format('q')}", rf"{path}.attention.q[\1]"),
        *_both(rf"{block}attn\.{project.format('k')}", rf"{path}.attention.k[\1]"),
        *_both(rf"{block}attn\.{project.format('v')}", rf"{path}.attention.v[\1]"),
        (rf"{block}attn\.norm_{qk}q\.weight", rf"{path}.attention.q_norm.scale[\1]"),
        (rf"{block}attn\.norm_{qk}k\.weight", rf"{path}.attention.k_norm.scale[\1]"),
        *_both(rf"{block}attn\.{out}", rf"{path}.out[\1]"),
        *_both(rf"{block}{feed_forward}\.net\.0\.proj", rf"{path}.feed_forward.up[\1]"),
        *_both(rf"{block}{feed_forward}\.net\.2", rf"{path}.feed_forward.down[\1]"),
    )


_SINGLE = r"single_transformer_blocks\.(\d+)\."
_CONDITIONS = "time_text_embed"

RENAMES: Renames = (
    *_both("x_embedder", "latents_in"),
    *_both("context_embedder", "text_in"),
    *_both(rf"{_CONDITIONS}\.timestep_embedder\.linear_1", "conditions.time_in.first"),
    *_both(rf"{_CONDITIONS}\.timestep_embedder\.linear_2", "conditions.time_in.second"),
    *_both(rf"{_CONDITIONS}\.guidance_embedder\.linear_1", "conditions.guidance_in.first"),
    *_both(rf"{_CONDITIONS}\.guidance_embedder\.linear_2", "conditions.guidance_in.second"),
    *_both(rf"{_CONDITIONS}\.text_embedder\.linear_1", "conditions.pooled_in.first"),
    *_both(rf"{_CONDITIONS}\.text_embedder\.linear_2", "conditions.pooled_in.second"),
    *_stream("image", "norm1", "to_{}", "", r"to_out\.0", "ff"),
    *_stream("text", "norm1_context", "add_{}_proj", "added_", "to_add_out", "ff_context"),
    *_both(rf"{_SINGLE}norm\.linear", r"conditions.single_modulation.linear[\1]"),
    *_both(rf"{_SINGLE}attn\.to_q", r"single_blocks.heads.q[\1]"),
    *_both(rf"{_SINGLE}attn\.to_k", r"single_blocks.heads.k[\1]"),
    *_both(rf"{_SINGLE}attn\.to_v", r"single_blocks.heads.v[\1]"),
    (rf"{_SINGLE}attn\.norm_q\.weight", r"single_blocks.heads.q_norm.scale[\1]"),
    (rf"{_SINGLE}attn\.norm_k\.weight", r"single_blocks.heads.k_norm.scale[\1]"),
    *_both(rf"{_SINGLE}proj_mlp", r"single_blocks.up[\1]"),
    *_both(rf"{_SINGLE}proj_out", r"single_blocks.down[\1]"),
    *_both(r"norm_out\.linear", "conditions.out_modulation.linear"),
    *_both("proj_out", "latents_out"),
)
