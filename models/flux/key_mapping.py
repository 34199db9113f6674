"""Maps keys of diffusers' Flux checkpoints to paths in `FluxTransformer` and `FluxControlNet`."""

from __future__ import annotations

from models.checkpoint.key_mapping import Renames, layer_renames
from models.flow.joint_names import BLOCKS, HEAD_NORMS, HEADS, SINGLE_BLOCKS, double_renames

_EMBEDDERS = {"timestep": "time_in", "guidance": "guidance_in", "text": "pooled_in"}
_FEED_FORWARD = {r"net\.0\.proj": "up", r"net\.2": "down"}

RENAMES: Renames = (
    *layer_renames(
        {
            "x_embedder": "latents_in",
            "context_embedder": "text_in",
            **{
                rf"time_text_embed\.{source}_embedder\.linear_{number}": f"conditions.{path}.{part}"
                for source, path in _EMBEDDERS.items()
                for number, part in ((1, "first"), (2, "second"))
            },
            r"norm_out\.linear": "conditions.out_modulation.linear",
            "proj_out": "latents_out",
        }
    ),
    *layer_renames(
        {
            r"norm1\.linear": "image_modulation.linear",
            r"norm1_context\.linear": "text_modulation.linear",
        },
        stack=(BLOCKS, "conditions"),
    ),
    *double_renames(
        {rf"ff\.{source}": path for source, path in _FEED_FORWARD.items()},
        {rf"ff_context\.{source}": path for source, path in _FEED_FORWARD.items()},
    ),
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
