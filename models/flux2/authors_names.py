"""The authors' names of the FLUX.2 transformer's arrays, which single files have.

Source: Black Forest Labs, FLUX.2 (src/flux2/model.py); diffusers' single_file_utils.py,
convert_flux2_transformer_checkpoint_to_diffusers.
"""

from __future__ import annotations

from models.checkpoint.authors_names import Fused, authors_renames
from models.checkpoint.key_mapping import Renames
from models.flux2.key_mapping import RENAMES

DOUBLE, SINGLE = "transformer_blocks.{}.", "single_transformer_blocks.{}."
TIME = "time_guidance_embed.timestep_embedder."

LAYERS: Fused = {
    "img_in": ("x_embedder",),
    "txt_in": ("context_embedder",),
    "time_in.in_layer": (f"{TIME}linear_1",),
    "time_in.out_layer": (f"{TIME}linear_2",),
    "double_stream_modulation_img.lin": ("double_stream_modulation_img.linear",),
    "double_stream_modulation_txt.lin": ("double_stream_modulation_txt.linear",),
    "single_stream_modulation.lin": ("single_stream_modulation.linear",),
    "double_blocks.{}.img_attn.qkv": tuple(f"{DOUBLE}attn.to_{one}" for one in "qkv"),
    "double_blocks.{}.txt_attn.qkv": tuple(f"{DOUBLE}attn.add_{one}_proj" for one in "qkv"),
    "double_blocks.{}.img_attn.proj": (f"{DOUBLE}attn.to_out.0",),
    "double_blocks.{}.txt_attn.proj": (f"{DOUBLE}attn.to_add_out",),
    "double_blocks.{}.img_mlp.0": (f"{DOUBLE}ff.linear_in",),
    "double_blocks.{}.img_mlp.2": (f"{DOUBLE}ff.linear_out",),
    "double_blocks.{}.txt_mlp.0": (f"{DOUBLE}ff_context.linear_in",),
    "double_blocks.{}.txt_mlp.2": (f"{DOUBLE}ff_context.linear_out",),
    "single_blocks.{}.linear1": (f"{SINGLE}attn.to_qkv_mlp_proj",),
    "single_blocks.{}.linear2": (f"{SINGLE}attn.to_out",),
    "final_layer.adaLN_modulation.1": ("norm_out.linear",),
    "final_layer.linear": ("proj_out",),
}
SWAPPED = frozenset({"final_layer.adaLN_modulation.1"})
"""Layers whose scale and shift lie the other way round."""

_NORMED = {
    r"double_blocks\.(\d+)\.img_attn\.norm": "double_blocks.image.attention",
    r"double_blocks\.(\d+)\.txt_attn\.norm": "double_blocks.text.attention",
    r"single_blocks\.(\d+)\.norm": "single_blocks.heads",
}

AUTHORS_RENAMES: Renames = (
    *authors_renames(LAYERS, RENAMES, SWAPPED),
    *(
        (rf"{theirs}\.{long}_norm\.(?:scale|weight)", rf"{ours}.{short}_norm.scale[\1]")
        for theirs, ours in _NORMED.items()
        for long, short in (("query", "q"), ("key", "k"))
    ),
)
