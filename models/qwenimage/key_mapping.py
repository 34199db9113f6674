"""Names in a diffusers checkpoint of the transformer → paths in `QwenImageTransformer`."""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames

_STREAM = {
    "image": {
        "modulation": r"img_mod\.1",
        **{one: rf"attn\.to_{one}" for one in "qkv"},
        "out": r"attn\.to_out\.0",
        **{f"{one}_norm": rf"attn\.norm_{one}" for one in "qk"},
        "up": r"img_mlp\.net\.0\.proj",
        "down": r"img_mlp\.net\.2",
    },
    "text": {
        "modulation": r"txt_mod\.1",
        **{one: rf"attn\.add_{one}_proj" for one in "qkv"},
        "out": r"attn\.to_add_out",
        **{f"{one}_norm": rf"attn\.norm_added_{one}" for one in "qk"},
        "up": r"txt_mlp\.net\.0\.proj",
        "down": r"txt_mlp\.net\.2",
    },
}
"""Layers of a block's streams, and their names in a checkpoint."""
_OTHERS = {
    "img_in": "latents_in",
    "txt_in": "text_in",
    r"time_text_embed\.timestep_embedder\.linear_1": "conditions.time_in.first",
    r"time_text_embed\.timestep_embedder\.linear_2": "conditions.time_in.second",
    r"norm_out\.linear": "conditions.out_modulation.linear",
    "proj_out": "latents_out",
}


def _path(stream: str, layer: str) -> str:
    if layer == "modulation":
        return f"conditions.{stream}_modulation.linear"
    room = {"out": "", "up": "feed_forward.", "down": "feed_forward."}.get(layer, "attention.")
    return f"double_blocks.{stream}.{room}{layer}"


def _of_stream(stream: str, layer: str, theirs: str) -> Renames:
    ours, key = _path(stream, layer), rf"transformer_blocks\.(\d+)\.{theirs}"
    if layer.endswith("_norm"):
        return ((rf"{key}\.weight", rf"{ours}.scale[\1]"),)
    return ((rf"{key}\.weight", rf"{ours}.kernel[\1]"), (rf"{key}\.bias", rf"{ours}.bias[\1]"))


RENAMES: Renames = (
    *(
        rule
        for theirs, ours in _OTHERS.items()
        for rule in ((rf"{theirs}\.weight", f"{ours}.kernel"), (rf"{theirs}\.bias", f"{ours}.bias"))
    ),
    (r"txt_norm\.weight", "text_norm.scale"),
    *(
        rule
        for stream, layers in _STREAM.items()
        for layer, theirs in layers.items()
        for rule in _of_stream(stream, layer, theirs)
    ),
)
