"""Original array names of the Flux transformer, as used in single files.

Source: Black Forest Labs, FLUX.1 (flux/model.py, flux/modules/layers.py).
"""

from __future__ import annotations

from models.checkpoint.authors_names import Fused
from models.checkpoint.key_mapping import Renames
from models.flow.joint_names import DOUBLE, SINGLE, authors_layers, authors_table
from models.flux.key_mapping import RENAMES

JOINED = tuple(f"{SINGLE}attn.to_{projection}" for projection in "qkv")

LAYERS: Fused = {
    **authors_layers("time_text_embed", "net.0.proj", "net.2"),
    "guidance_in.in_layer": ("time_text_embed.guidance_embedder.linear_1",),
    "guidance_in.out_layer": ("time_text_embed.guidance_embedder.linear_2",),
    "vector_in.in_layer": ("time_text_embed.text_embedder.linear_1",),
    "vector_in.out_layer": ("time_text_embed.text_embedder.linear_2",),
    "double_blocks.{}.img_mod.lin": (f"{DOUBLE}norm1.linear",),
    "double_blocks.{}.txt_mod.lin": (f"{DOUBLE}norm1_context.linear",),
    "single_blocks.{}.modulation.lin": (f"{SINGLE}norm.linear",),
    "single_blocks.{}.linear1": (*JOINED, f"{SINGLE}proj_mlp"),
    "single_blocks.{}.linear2": (f"{SINGLE}proj_out",),
}
AUTHORS_RENAMES: Renames = authors_table(LAYERS, RENAMES)
