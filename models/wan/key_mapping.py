"""Maps keys of diffusers' Wan checkpoints to paths in `WanTransformer` and `FaceEncoder`."""

from __future__ import annotations

Renames = tuple[tuple[str, str], ...]


def _both(name: str, path: str, kind: str = "kernel") -> Renames:
    """Return rename rules of a layer's weight and bias; `[layer]` moves after the leaf's name."""
    path, bracket, layer = path.partition("[")
    return (
        (rf"{name}\.weight", f"{path}.{kind}{bracket}{layer}"),
        (rf"{name}\.bias", f"{path}.bias{bracket}{layer}"),
    )


_BLOCK = r"blocks\.(\d+)\."
_CONDITIONS = r"condition_embedder\."


def _attention(source: str, target: str, keys_values: str) -> Renames:
    """Return the rename rules shared by self-attention and cross-attention."""
    name, path = f"{_BLOCK}{source}", f"blocks.{target}"
    return (
        *_both(rf"{name}\.to_q", rf"{path}.queries.q[\1]"),
        *_both(rf"{name}\.to_k", rf"{path}.{keys_values}.k[\1]"),
        *_both(rf"{name}\.to_v", rf"{path}.{keys_values}.v[\1]"),
        *_both(rf"{name}\.to_out\.0", rf"{path}.queries.out[\1]"),
        (rf"{name}\.norm_q\.weight", rf"{path}.queries.q_norm.scale[\1]"),
        (rf"{name}\.norm_k\.weight", rf"{path}.{keys_values}.k_norm.scale[\1]"),
    )


_TRANSFORMER: Renames = (
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
    # Early conversions contain an unused norm, which diffusers ignores as well.
    (rf"{_BLOCK}attn2\.norm_added_q\.weight", ""),
    *_both(rf"{_BLOCK}norm2", r"blocks.cross_norm[\1]", "scale"),
    *_both(rf"{_BLOCK}ffn\.net\.0\.proj", r"blocks.feed_forward.up[\1]"),
    *_both(rf"{_BLOCK}ffn\.net\.2", r"blocks.feed_forward.down[\1]"),
    (rf"{_BLOCK}scale_shift_table", r"blocks.scale_shift_table[\1]"),
    ("scale_shift_table", "scale_shift_table"),
    *_both("proj_out", "patches_out"),
)


def _control(rules: Renames) -> Renames:
    """Return the rename rules of VACE's control blocks, derived from the main blocks'."""
    return tuple(
        (f"vace_{name}", path.replace("blocks.", "control_blocks.", 1))
        for name, path in rules
        if name.startswith(_BLOCK)
    )


def _face_adapters(*layers: str) -> Renames:
    """Return the rename rules of Animate's face attention layers."""
    name = r"face_adapter\.(\d+)\."
    return (
        *(
            rule
            for layer in layers
            for rule in _both(f"{name}to_{layer}", rf"face_adapters.{layer}[\1]")
        ),
        (rf"{name}norm_q\.weight", r"face_adapters.q_norm.scale[\1]"),
        (rf"{name}norm_k\.weight", r"face_adapters.k_norm.scale[\1]"),
    )


RENAMES: Renames = (
    *_TRANSFORMER,
    *_both("vace_patch_embedding", "control_patches_in"),
    *_both(r"vace_blocks\.0\.proj_in", "control_in"),
    *_both(rf"vace_{_BLOCK}proj_out", r"control_blocks.hint_out[\1]"),
    *_control(_TRANSFORMER),
    *_both("pose_patch_embedding", "pose_patches_in"),
    *_face_adapters("q", "k", "v", "out"),
    (r"(?:motion|face)_encoder\..+", ""),  # a separate network
)
_MOTION, _FACE = r"motion_encoder\.", r"face_encoder\."


def _motion_conv(name: str, path: str) -> Renames:
    """Return the rename rules of a motion encoder convolution, whose bias is in its activation."""
    return (
        (rf"{_MOTION}{name}\.weight", f"motion.{path}.layer.kernel"),
        (rf"{_MOTION}{name}\.act_fn\.bias", f"motion.{path}.layer.bias"),
    )


FACE_RENAMES: Renames = (
    *_motion_conv("conv_in", "image_in"),
    *_motion_conv(r"res_blocks\.(\d+)\.conv1", r"halving.\1.first"),
    *_motion_conv(r"res_blocks\.(\d+)\.conv2", r"halving.\1.second"),
    *_motion_conv(r"res_blocks\.(\d+)\.conv_skip", r"halving.\1.skip"),
    *_motion_conv("conv_out", "style_out"),
    *_both(rf"{_MOTION}motion_network\.(\d+)", r"motion.linears.\1"),
    (rf"{_MOTION}motion_synthesis_weight", "motion.directions"),
    *_both(rf"{_FACE}conv1_local", "convs.0"),
    *_both(rf"{_FACE}conv2", "convs.1"),
    *_both(rf"{_FACE}conv3", "convs.2"),
    *_both(rf"{_FACE}out_proj", "out"),
    (rf"{_FACE}padding_tokens", "learned"),
    (r"(?!motion_encoder\.|face_encoder\.).+", ""),
)
"""Keys in the same files → paths in Animate's `FaceEncoder`."""
