"""The authors' names of the Flux transformer's arrays, which single files have.

Source: Black Forest Labs, FLUX.1 (flux/model.py, flux/modules/layers.py).
"""

from __future__ import annotations

from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames
from models.flux.key_mapping import RENAMES

DOUBLE, SINGLE = "transformer_blocks.{}.", "single_transformer_blocks.{}."
IMAGE = tuple(f"{DOUBLE}attn.to_{one}" for one in "qkv")
TEXT = tuple(f"{DOUBLE}attn.add_{one}_proj" for one in "qkv")
JOINED = tuple(f"{SINGLE}attn.to_{one}" for one in "qkv")

LAYERS: Fused = {
    "img_in": ("x_embedder",),
    "txt_in": ("context_embedder",),
    "time_in.in_layer": ("time_text_embed.timestep_embedder.linear_1",),
    "time_in.out_layer": ("time_text_embed.timestep_embedder.linear_2",),
    "guidance_in.in_layer": ("time_text_embed.guidance_embedder.linear_1",),
    "guidance_in.out_layer": ("time_text_embed.guidance_embedder.linear_2",),
    "vector_in.in_layer": ("time_text_embed.text_embedder.linear_1",),
    "vector_in.out_layer": ("time_text_embed.text_embedder.linear_2",),
    "double_blocks.{}.img_mod.lin": (f"{DOUBLE}norm1.linear",),
    "double_blocks.{}.txt_mod.lin": (f"{DOUBLE}norm1_context.linear",),
    "double_blocks.{}.img_attn.qkv": IMAGE,
    "double_blocks.{}.txt_attn.qkv": TEXT,
    "double_blocks.{}.img_attn.proj": (f"{DOUBLE}attn.to_out.0",),
    "double_blocks.{}.txt_attn.proj": (f"{DOUBLE}attn.to_add_out",),
    "double_blocks.{}.img_mlp.0": (f"{DOUBLE}ff.net.0.proj",),
    "double_blocks.{}.img_mlp.2": (f"{DOUBLE}ff.net.2",),
    "double_blocks.{}.txt_mlp.0": (f"{DOUBLE}ff_context.net.0.proj",),
    "double_blocks.{}.txt_mlp.2": (f"{DOUBLE}ff_context.net.2",),
    "single_blocks.{}.modulation.lin": (f"{SINGLE}norm.linear",),
    "single_blocks.{}.linear1": (*JOINED, f"{SINGLE}proj_mlp"),
    "single_blocks.{}.linear2": (f"{SINGLE}proj_out",),
    "final_layer.adaLN_modulation.1": ("norm_out.linear",),
    "final_layer.linear": ("proj_out",),
}
SWAPPED = frozenset({"final_layer.adaLN_modulation.1"})
"""Layers whose scale and shift lie the other way round."""


def _norms(theirs: str, ours: str) -> Renames:
    """Norms of queries and keys; older files say `scale`."""
    return tuple(
        (rf"{theirs}\.{long}_norm\.(?:scale|weight)", rf"{ours}.{short}_norm.scale[\1]")
        for long, short in (("query", "q"), ("key", "k"))
    )


AUTHORS_RENAMES: Renames = (
    *authors_renames(LAYERS, RENAMES, SWAPPED),
    *_norms(r"double_blocks\.(\d+)\.img_attn\.norm", "double_blocks.image.attention"),
    *_norms(r"double_blocks\.(\d+)\.txt_attn\.norm", "double_blocks.text.attention"),
    *_norms(r"single_blocks\.(\d+)\.norm", "single_blocks.heads"),
)
