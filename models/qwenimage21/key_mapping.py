"""Maps array names of the Qwen-Image 2.1 transformer to paths in `QwenImage21Transformer`.

Source: diffusers' QwenImage21Transformer2DModel; its single_file_utils.py for ComfyUI's fused
feed-forwards; its loaders/lora_conversion_utils.py for the prefixes of adapters.
"""

from __future__ import annotations

from models.adapters.layer_names import DOTTED, OF_PEFT, Spelling
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming
from models.flow.joint_names import BLOCKS, HEAD_NORMS, HEADS

_STACK = (BLOCKS, "blocks")

RENAMES: Renames = (
    *layer_renames(
        {
            "img_in": "latents_in",
            r"txt_in\.in_layer": "text_in.first",
            r"txt_in\.out_layer": "text_in.second",
            r"time_text_embed\.timestep_embedder\.linear_1": "time_in.first",
            r"time_text_embed\.timestep_embedder\.linear_2": "time_in.second",
            r"modulation\.1": "modulation.linear",
            r"norm_out\.linear": "out_modulation.linear",
            "proj_out": "latents_out",
        },
        {r"txt_in\.text_norm": "text_in.norm"},
    ),
    *layer_renames(
        {
            **HEADS,
            r"attn\.to_out\.0": "out",
            r"img_mlp\.gate_layer": "feed_forward.gate",
            r"img_mlp\.proj": "feed_forward.up",
            r"img_mlp\.out": "feed_forward.down",
        },
        HEAD_NORMS,
        _STACK,
    ),
)
"""Keys of Qwen-Image 2.1 in diffusers' layout → paths."""

COMFYS_RENAMES: Renames = (
    *layer_renames({r"img_mlp\.gate_up": "feed_forward.{gate,up}"}, stack=_STACK),
    *RENAMES,
)
NAMINGS = (Naming(TRANSFORMER_PREFIXES, "txt_in.text_norm.weight", COMFYS_RENAMES),)
"""Array naming schemes of Qwen-Image 2.1 in single files."""

SPELLINGS = (Spelling(RENAMES, dotted=(*DOTTED, *OF_PEFT, "")),)
"""Layer names of Qwen-Image 2.1 in adapter files."""
