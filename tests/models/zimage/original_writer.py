"""Z-Image's weights under ComfyUI's keys, for tests."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.models.sdxl.original_writer import vae
from tests.models.single_files import Tensors

NAMES = (
    ("all_final_layer.2-1.", "final_layer."),
    ("all_x_embedder.2-1.", "x_embedder."),
    (".attention.to_out.0.", ".attention.out."),
    (".attention.norm_q.", ".attention.q_norm."),
    (".attention.norm_k.", ".attention.k_norm."),
)
"""Parts of diffusers' names, with ComfyUI's equivalents."""


def transformer(folder: Path) -> Tensors:
    """Return the transformer's arrays under ComfyUI's keys."""
    renamed: Tensors = {"norm_final.weight": torch.ones(3)}
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    for key, tensor in stored.items():
        match = re.fullmatch(r"(.+\.attention\.)to_([qkv])\.weight", key)
        if match is None:
            for part, original in NAMES:
                key = key.replace(part, original)
            renamed[key] = tensor
        elif match[2] == "q":
            parts = [stored[f"{match[1]}to_{letter}.weight"] for letter in "qkv"]
            renamed[f"{match[1]}qkv.weight"] = torch.cat(parts)
    return renamed


def all_in_one(folder: Path) -> Tensors:
    """Return the arrays of ComfyUI's complete checkpoints."""
    text = load_file(folder / "text_encoder/model.safetensors")
    return {
        **{f"model.diffusion_model.{key}": t for key, t in transformer(folder).items()},
        **{f"text_encoders.qwen3_4b.transformer.model.{key}": t for key, t in text.items()},
        **{f"vae.{key}": t for key, t in vae(folder / "vae").items()},
    }
