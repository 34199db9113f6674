"""Names in a diffusers checkpoint of the Z-Image transformer → paths in `ZImageTransformer`."""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames

STACKS = {"noise_refiner": "image_blocks", "context_refiner": "text_blocks", "layers": "blocks"}
"""Blocks of a checkpoint → ours."""
_BLOCK = {
    **{rf"attention\.to_{one}": f"{one}.kernel" for one in "qkv"},
    r"attention\.to_out\.0": "out.kernel",
    **{rf"attention\.norm_{one}": f"{one}_norm.scale" for one in "qk"},
    r"feed_forward\.w1": "gate.kernel",
    r"feed_forward\.w2": "down.kernel",
    r"feed_forward\.w3": "up.kernel",
    "attention_norm1": "attention_in.scale",
    "attention_norm2": "attention_out.scale",
    "ffn_norm1": "feed_forward_in.scale",
    "ffn_norm2": "feed_forward_out.scale",
    r"adaLN_modulation\.0": "modulation.kernel",
}
_LAYERS = {
    r"all_x_embedder\.2-1": "latents_in",
    r"all_final_layer\.2-1\.linear": "latents_out",
    r"all_final_layer\.2-1\.adaLN_modulation\.1": "out_modulation",
    r"t_embedder\.mlp\.0": "time_in.first",
    r"t_embedder\.mlp\.2": "time_in.second",
    r"cap_embedder\.1": "text_in",
}

RENAMES: Renames = (
    *(
        rule
        for theirs, ours in _LAYERS.items()
        for rule in ((rf"{theirs}\.weight", f"{ours}.kernel"), (rf"{theirs}\.bias", f"{ours}.bias"))
    ),
    (r"cap_embedder\.0\.weight", "text_norm.scale"),
    ("x_pad_token", "image_filling"),
    ("cap_pad_token", "text_filling"),
    *(
        (rf"{theirs}\.(\d+)\.{name}\.weight", rf"{ours}.{leaf}[\1]")
        for theirs, ours in STACKS.items()
        for name, leaf in _BLOCK.items()
    ),
    *(
        (rf"{theirs}\.(\d+)\.adaLN_modulation\.0\.bias", rf"{ours}.modulation.bias[\1]")
        for theirs, ours in STACKS.items()
    ),
)
