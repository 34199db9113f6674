"""Maps array names of the Qwen-Image transformer to paths in `QwenImageTransformer`.

Source: diffusers' QwenImageTransformer2DModel, whose keys ComfyUI's single files also use, and
QwenImageControlNetModel; its loaders/lora_conversion_utils.py for the prefixes of adapters.
"""

from __future__ import annotations

from models.adapters.layer_names import DOTTED, OF_PEFT, Spelling
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming
from models.flow.joint_control import OWN_RENAMES
from models.flow.joint_names import BLOCKS, double_renames, outer_layers

RENAMES: Renames = (
    *layer_renames(
        outer_layers("img_in", "txt_in", {r"time_text_embed\.timestep": "time_in"}),
        {"txt_norm": "text_norm"},
    ),
    *layer_renames(
        {r"img_mod\.1": "image_modulation.linear", r"txt_mod\.1": "text_modulation.linear"},
        stack=(BLOCKS, "conditions"),
    ),
    *double_renames({r"net\.0\.proj": "up", r"net\.2": "down"}, "img_mlp", "txt_mlp"),
)
"""Keys of Qwen-Image in diffusers' layout → paths."""

CONTROL_RENAMES: Renames = (*RENAMES, *OWN_RENAMES)
"""Keys of a ControlNet → paths in `QwenImageControlNet`."""

AT_ZERO: Renames = ((r"__index_timestep_zero__", ""),)
"""Marker key in ComfyUI's files of networks with references at timestep 0 (Edit 2511). It is not an
array, and an unexpected key for other networks."""


def namings_of(zero_cond_t: bool) -> tuple[Naming, ...]:
    """Return the array naming schemes of Qwen-Image in single files.

    Args:
        zero_cond_t: whether the network's references have timestep 0.
    """
    renames = (*AT_ZERO, *RENAMES) if zero_cond_t else RENAMES
    mark = "transformer_blocks.0.attn.norm_added_q.weight"
    return (Naming(TRANSFORMER_PREFIXES, mark, renames),)


SPELLINGS = (Spelling(RENAMES, dotted=(*DOTTED, *OF_PEFT, "")),)
"""Layer names of Qwen-Image in adapter files."""
