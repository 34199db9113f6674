"""Names in a diffusers checkpoint of the Wan transformer → paths in `WanTransformer`."""

from __future__ import annotations

Renames = tuple[tuple[str, str], ...]


def _both(name: str, path: str, kind: str = "kernel") -> Renames:
    """A layer's two arrays; `[layer]` in the path stays behind the leaf's name."""
    path, bracket, layer = path.partition("[")
    return (
        (rf"{name}\.weight", f"{path}.{kind}{bracket}{layer}"),
        (rf"{name}\.bias", f"{path}.bias{bracket}{layer}"),
    )


_BLOCK = r"blocks\.(\d+)\."
_CONDITIONS = r"condition_embedder\."


def _attention(theirs: str, ours: str, keys_values: str) -> Renames:
    """Renames that self and cross attention have in common."""
    name, path = f"{_BLOCK}{theirs}", f"blocks.{ours}"
    return (
        *_both(rf"{name}\.to_q", rf"{path}.queries.q[\1]"),
        *_both(rf"{name}\.to_k", rf"{path}.{keys_values}.k[\1]"),
        *_both(rf"{name}\.to_v", rf"{path}.{keys_values}.v[\1]"),
        *_both(rf"{name}\.to_out\.0", rf"{path}.queries.out[\1]"),
        (rf"{name}\.norm_q\.weight", rf"{path}.queries.q_norm.scale[\1]"),
        (rf"{name}\.norm_k\.weight", rf"{path}.{keys_values}.k_norm.scale[\1]"),
    )


_OWN: Renames = (
    *_both("patch_embedding", "patches_in"),
    *_both(rf"{_CONDITIONS}time_embedder\.linear_1", "time_in.first"),
    *_both(rf"{_CONDITIONS}time_embedder\.linear_2", "time_in.second"),
    *_both(rf"{_CONDITIONS}time_proj", "time_modulation"),
    *_both(rf"{_CONDITIONS}text_embedder\.linear_1", "text_in.up"),
    *_both(rf"{_CONDITIONS}text_embedder\.linear_2", "text_in.down"),
    (rf"{_CONDITIONS}image_embedder\.pos_embed", "image_in.positions"),
    *_both(rf"{_CONDITIONS}image_embedder\.norm1", "image_in.norm_in", "scale"),
    *_both(rf"{_CONDITIONS}image_embedder\.ff\.net\.0\.proj", "image_in.feed_forward.up"),
    *_both(rf"{_CONDITIONS}image_embedder\.ff\.net\.2", "image_in.feed_forward.down"),
    *_both(rf"{_CONDITIONS}image_embedder\.norm2", "image_in.norm_out", "scale"),
    *_attention("attn1", "self_attention", "own"),
    *_attention("attn2", "cross_attention", "text"),
    *_both(rf"{_BLOCK}attn2\.add_k_proj", r"blocks.cross_attention.image.k[\1]"),
    *_both(rf"{_BLOCK}attn2\.add_v_proj", r"blocks.cross_attention.image.v[\1]"),
    (rf"{_BLOCK}attn2\.norm_added_k\.weight", r"blocks.cross_attention.image.k_norm.scale[\1]"),
    # Early conversions hold a norm that nothing reads; diffusers passes it over too.
    (rf"{_BLOCK}attn2\.norm_added_q\.weight", ""),
    *_both(rf"{_BLOCK}norm2", r"blocks.cross_norm[\1]", "scale"),
    *_both(rf"{_BLOCK}ffn\.net\.0\.proj", r"blocks.feed_forward.up[\1]"),
    *_both(rf"{_BLOCK}ffn\.net\.2", r"blocks.feed_forward.down[\1]"),
    (rf"{_BLOCK}scale_shift_table", r"blocks.scale_shift_table[\1]"),
    ("scale_shift_table", "scale_shift_table"),
    *_both("proj_out", "patches_out"),
)


def _control(rules: Renames) -> Renames:
    """Rules of VACE's control blocks: those of the main stack's blocks."""
    return tuple(
        (f"vace_{name}", path.replace("blocks.", "control_blocks.", 1))
        for name, path in rules
        if name.startswith(_BLOCK)
    )


RENAMES: Renames = (
    *_OWN,
    *_both("vace_patch_embedding", "control_patches_in"),
    *_both(r"vace_blocks\.0\.proj_in", "control_in"),
    *_both(rf"vace_{_BLOCK}proj_out", r"control_blocks.hint_out[\1]"),
    *_control(_OWN),
)
