"""Krea 2's weights under the authors' keys, for tests."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from tests.models.single_files import Tensors

BLOCK_NAMES = (
    *((f".attn.to_{letter}.", f".attn.w{letter}.") for letter in "qkv"),
    (".attn.to_out.0.", ".attn.wo."),
    (".attn.to_gate.", ".attn.gate."),
    (".attn.norm_q.weight", ".attn.qknorm.qnorm.scale"),
    (".attn.norm_k.weight", ".attn.qknorm.knorm.scale"),
    (".ff.", ".mlp."),
    (".norm1.weight", ".prenorm.scale"),
    (".norm2.weight", ".postnorm.scale"),
)
"""Parts of diffusers' names in a block, with the authors' equivalents."""
NAMES = (
    ("img_in.", "first."),
    ("time_embed.linear_1.", "tmlp.0."),
    ("time_embed.linear_2.", "tmlp.2."),
    ("time_mod_proj.", "tproj.1."),
    ("txt_in.norm.weight", "txtmlp.0.scale"),
    ("txt_in.linear_1.", "txtmlp.1."),
    ("txt_in.linear_2.", "txtmlp.3."),
    ("text_fusion.", "txtfusion."),
    ("final_layer.linear.", "last.linear."),
    ("final_layer.norm.weight", "last.norm.scale"),
    ("final_layer.scale_shift_table", "last.modulation.lin"),
)


def transformer(folder: Path) -> Tensors:
    """Return the transformer's arrays under the authors' keys."""
    renamed: Tensors = {}
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    for key, tensor in stored.items():
        for name, original in NAMES:
            key = key.replace(name, original) if key.startswith(name) else key
        for name, original in BLOCK_NAMES:
            key = key.replace(name, original)
        if key.endswith(".scale_shift_table"):
            key, tensor = key.replace("scale_shift_table", "mod.lin"), tensor.flatten()
        renamed[key.replace("transformer_blocks.", "blocks.")] = tensor
    return renamed
