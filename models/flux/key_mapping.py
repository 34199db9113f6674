"""Maps keys of diffusers' Flux checkpoints to paths in `FluxTransformer` and `FluxControlNet`."""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames, layer_renames
from models.flow.joint_names import (
    BLOCKS,
    HEAD_NORMS,
    HEADS,
    SINGLE_BLOCKS,
    double_renames,
    outer_layers,
)

_EMBEDDERS = {
    r"time_text_embed\.timestep": "time_in",
    r"time_text_embed\.guidance": "guidance_in",
    r"time_text_embed\.text": "pooled_in",
}

RENAMES: Renames = (
    *layer_renames(outer_layers("x_embedder", "context_embedder", _EMBEDDERS)),
    *layer_renames(
        {
            r"norm1\.linear": "image_modulation.linear",
            r"norm1_context\.linear": "text_modulation.linear",
        },
        stack=(BLOCKS, "conditions"),
    ),
    *double_renames({r"net\.0\.proj": "up", r"net\.2": "down"}),
    *layer_renames(
        {r"norm\.linear": "single_modulation.linear"}, stack=(SINGLE_BLOCKS, "conditions")
    ),
    *layer_renames(
        {**HEADS, "proj_mlp": "middle.up", "proj_out": "down"},
        HEAD_NORMS,
        (SINGLE_BLOCKS, "single_blocks"),
    ),
)
_OUTPUTS = {"controlnet_blocks": "double_out", "controlnet_single_blocks": "single_out"}

CONTROL_RENAMES: Renames = (
    *RENAMES,
    *layer_renames({"controlnet_x_embedder": "hint_in"}),
    *(
        (rf"{source}\.(\d+)\.{array}", rf"{path}.{leaf}[\1]")
        for source, path in _OUTPUTS.items()
        for array, leaf in (("weight", "kernel"), ("bias", "bias"))
    ),
    (r"controlnet_mode_embedder\.weight", "kinds.embedding"),
)
"""Keys of a Flux ControlNet → paths in `FluxControlNet`."""
