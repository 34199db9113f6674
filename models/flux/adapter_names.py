"""Names of Flux's layers in files of adapters.

Source: Black Forest Labs, FLUX.1 (flux/model.py) for the authors' names; XLabs,
x-flux (src/flux/modules/layers.py) for those of its processors.
"""

from __future__ import annotations

from models.adapters.clip_names import clip_spelling
from models.adapters.layer_names import Fused, Spelling
from models.flux.key_mapping import RENAMES

_DOUBLE, _SINGLE = "transformer_blocks.{}.", "single_transformer_blocks.{}."
_IMAGE = tuple(f"{_DOUBLE}attn.to_{one}" for one in "qkv")
_TEXT = tuple(f"{_DOUBLE}attn.add_{one}_proj" for one in "qkv")
_JOINED = tuple(f"{_SINGLE}attn.to_{one}" for one in "qkv")

_AUTHORS_NAMES: Fused = {
    "img_in": ("x_embedder",),
    "txt_in": ("context_embedder",),
    "time_in.in_layer": ("time_text_embed.timestep_embedder.linear_1",),
    "time_in.out_layer": ("time_text_embed.timestep_embedder.linear_2",),
    "guidance_in.in_layer": ("time_text_embed.guidance_embedder.linear_1",),
    "guidance_in.out_layer": ("time_text_embed.guidance_embedder.linear_2",),
    "vector_in.in_layer": ("time_text_embed.text_embedder.linear_1",),
    "vector_in.out_layer": ("time_text_embed.text_embedder.linear_2",),
    "double_blocks.{}.img_mod.lin": (f"{_DOUBLE}norm1.linear",),
    "double_blocks.{}.txt_mod.lin": (f"{_DOUBLE}norm1_context.linear",),
    "double_blocks.{}.img_attn.qkv": _IMAGE,
    "double_blocks.{}.txt_attn.qkv": _TEXT,
    "double_blocks.{}.img_attn.proj": (f"{_DOUBLE}attn.to_out.0",),
    "double_blocks.{}.txt_attn.proj": (f"{_DOUBLE}attn.to_add_out",),
    "double_blocks.{}.img_mlp.0": (f"{_DOUBLE}ff.net.0.proj",),
    "double_blocks.{}.img_mlp.2": (f"{_DOUBLE}ff.net.2",),
    "double_blocks.{}.txt_mlp.0": (f"{_DOUBLE}ff_context.net.0.proj",),
    "double_blocks.{}.txt_mlp.2": (f"{_DOUBLE}ff_context.net.2",),
    "single_blocks.{}.modulation.lin": (f"{_SINGLE}norm.linear",),
    "single_blocks.{}.linear1": (*_JOINED, f"{_SINGLE}proj_mlp"),
    "single_blocks.{}.linear2": (f"{_SINGLE}proj_out",),
    "final_layer.adaLN_modulation.1": ("norm_out.linear",),
    "final_layer.linear": ("proj_out",),
    # XLabs' processors
    "double_blocks.{}.qkv_lora1": _IMAGE,
    "double_blocks.{}.qkv_lora2": _TEXT,
    "double_blocks.{}.proj_lora1": (f"{_DOUBLE}attn.to_out.0",),
    "double_blocks.{}.proj_lora2": (f"{_DOUBLE}attn.to_add_out",),
    "single_blocks.{}.qkv_lora": _JOINED,
    "single_blocks.{}.proj_lora": (f"{_SINGLE}proj_out",),
}

TRANSFORMER = Spelling(
    network="transformer",
    renames=RENAMES,
    dotted=("transformer.", "diffusion_model.", "model.diffusion_model.", "base_model.model.", ""),
    underscored=("lora_unet_", "lora_transformer_"),
    fused=lambda network: _AUTHORS_NAMES,
    swapped=frozenset({"final_layer.adaLN_modulation.1"}),
    unread=("norm",),
)

SPELLINGS = (TRANSFORMER, clip_spelling("clip", "text_encoder", ("lora_te1", "lora_te"), "clip_l"))
