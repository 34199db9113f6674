"""Maps array names of the FLUX.2 transformer to paths in `Flux2Transformer`.

Source: diffusers' Flux2Transformer2DModel; Black Forest Labs, FLUX.2 (src/flux2/model.py), and
diffusers' single_file_utils.py, convert_flux2_transformer_checkpoint_to_diffusers, for the original
names; diffusers' loaders/lora_conversion_utils.py for the prefixes of adapters.
"""

from __future__ import annotations

from models.adapters.layer_names import Spelling
from models.checkpoint.authors_names import Fused
from models.checkpoint.key_mapping import Renames, layer_renames
from models.checkpoint.single_file import TRANSFORMER_PREFIXES, Naming
from models.flow.joint_names import (
    HEAD_NORMS,
    SINGLE,
    SINGLE_BLOCKS,
    SWAPPED,
    authors_layers,
    authors_table,
    double_renames,
    outer_layers,
)

_SCALARS = {"timestep": "time_in", "guidance": "guidance_in"}
"""Embedders of scalars."""
_SHARED = {
    "double_stream_modulation_img": "image_modulation",
    "double_stream_modulation_txt": "text_modulation",
    "single_stream_modulation": "single_modulation",
}
"""Modulation layers, each shared by all blocks of a kind."""

RENAMES: Renames = (
    *layer_renames(
        {
            **outer_layers(
                *("x_embedder", "context_embedder"),
                {rf"time_guidance_embed\.{source}": path for source, path in _SCALARS.items()},
            ),
            **{
                rf"{source}\.linear": f"conditions.{target}.linear"
                for source, target in _SHARED.items()
            },
        }
    ),
    *double_renames({"linear_in": "{gate,up}", "linear_out": "down"}),
    *layer_renames(
        {
            r"attn\.to_qkv_mlp_proj": "{heads.q,heads.k,heads.v,middle.gate,middle.up}",
            r"attn\.to_out": "down",
        },
        HEAD_NORMS,
        (SINGLE_BLOCKS, "single_blocks"),
    ),
)
"""Keys of FLUX.2 in diffusers' layout → paths."""

LAYERS: Fused = {
    **authors_layers("time_guidance_embed", "linear_in", "linear_out"),
    **{f"{layer}.lin": (f"{layer}.linear",) for layer in _SHARED},
    "single_blocks.{}.linear1": (f"{SINGLE}attn.to_qkv_mlp_proj",),
    "single_blocks.{}.linear2": (f"{SINGLE}attn.to_out",),
}
"""Original layer names of FLUX.2 → diffusers' names."""
AUTHORS_RENAMES = authors_table(LAYERS, RENAMES)

NAMINGS = (
    Naming(TRANSFORMER_PREFIXES, "single_stream_modulation.lin.weight", AUTHORS_RENAMES),
    Naming(TRANSFORMER_PREFIXES, "single_stream_modulation.linear.weight", RENAMES),
)
"""Array naming schemes of FLUX.2 in single files."""

SPELLINGS = (
    Spelling(
        RENAMES,
        fused=lambda network: LAYERS,
        swapped=SWAPPED,
        synonyms=(("transformer_blocks", "sformer_blocks"),),  # as some converters shorten it
        unread=("norm",),
    ),
)
"""Layer names of FLUX.2 in adapter files."""
