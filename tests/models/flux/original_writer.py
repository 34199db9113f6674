"""Convert a Flux folder in diffusers' layout to single files with the authors' keys.

Uses only the folder's arrays and configs, none of the rename tables under test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.models.sdxl.original_writer import vae
from tests.models.single_files import Tensors

_PLAIN = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "proj_out": "final_layer.linear",
}
_DOUBLE = {
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
}
_DOUBLE_NORMS = {
    "attn.norm_q.weight": "img_attn.norm.query_norm.scale",
    "attn.norm_k.weight": "img_attn.norm.key_norm.scale",
    "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
    "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
}


def transformer(folder: Path) -> Tensors:
    """Return the transformer's arrays under the authors' keys."""
    return dict(_transformer(load_file(folder / "diffusion_pytorch_model.safetensors")))


def _transformer(stored: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    for name, original in _PLAIN.items():
        for array in ("weight", "bias"):
            if f"{name}.{array}" in stored:
                yield f"{original}.{array}", stored[f"{name}.{array}"]
    for array in ("weight", "bias"):
        scale, shift = stored[f"norm_out.linear.{array}"].chunk(2)
        yield f"final_layer.adaLN_modulation.1.{array}", torch.cat([shift, scale])
    for block in _blocks(stored, "transformer_blocks"):
        yield from _double(stored, f"transformer_blocks.{block}", f"double_blocks.{block}")
    for block in _blocks(stored, "single_transformer_blocks"):
        yield from _single(stored, f"single_transformer_blocks.{block}", f"single_blocks.{block}")


def _blocks(stored: Tensors, name: str) -> list[str]:
    matches = (re.match(rf"{name}\.(\d+)\.", key) for key in stored)
    return sorted({match[1] for match in matches if match})


def _double(stored: Tensors, ours: str, theirs: str) -> Iterator[tuple[str, torch.Tensor]]:
    for part, name in _DOUBLE.items():
        for array in ("weight", "bias"):
            yield f"{theirs}.{name}.{array}", stored[f"{ours}.{part}.{array}"]
    for part, name in _DOUBLE_NORMS.items():
        yield f"{theirs}.{name}", stored[f"{ours}.{part}"]
    for array in ("weight", "bias"):
        image = [stored[f"{ours}.attn.to_{letter}.{array}"] for letter in "qkv"]
        text = [stored[f"{ours}.attn.add_{letter}_proj.{array}"] for letter in "qkv"]
        yield f"{theirs}.img_attn.qkv.{array}", torch.cat(image)
        yield f"{theirs}.txt_attn.qkv.{array}", torch.cat(text)


def _single(stored: Tensors, ours: str, theirs: str) -> Iterator[tuple[str, torch.Tensor]]:
    for array in ("weight", "bias"):
        yield f"{theirs}.modulation.lin.{array}", stored[f"{ours}.norm.linear.{array}"]
        yield f"{theirs}.linear2.{array}", stored[f"{ours}.proj_out.{array}"]
        parts = [*(f"attn.to_{letter}" for letter in "qkv"), "proj_mlp"]
        joined = [stored[f"{ours}.{part}.{array}"] for part in parts]
        yield f"{theirs}.linear1.{array}", torch.cat(joined)
    yield f"{theirs}.norm.query_norm.scale", stored[f"{ours}.attn.norm_q.weight"]
    yield f"{theirs}.norm.key_norm.scale", stored[f"{ours}.attn.norm_k.weight"]


def all_in_one(folder: Path) -> Tensors:
    """Return the arrays of ComfyUI's complete checkpoints: transformer, both encoders and the
    VAE.
    """
    parts = {
        "model.diffusion_model.": transformer(folder / "transformer"),
        "text_encoders.clip_l.transformer.": clip(folder / "text_encoder"),
        "text_encoders.t5xxl.transformer.": load_file(folder / "text_encoder_2/model.safetensors"),
        "vae.": vae(folder / "vae"),
    }
    named = {prefix + key: t for prefix, part in parts.items() for key, t in part.items()}
    extras = {
        "text_encoders.clip_l.logit_scale": torch.tensor(4.6),
        "text_encoders.clip_l.transformer.text_projection.weight": torch.zeros(3, 3),
        "text_encoders.t5xxl.logit_scale": torch.tensor(4.6),
    }
    return named | extras


def clip(folder: Path) -> Tensors:
    stored = load_file(folder / "model.safetensors")
    return {f"text_model.{key.removeprefix('text_model.')}": t for key, t in stored.items()}


def in_eight_bits(tensors: Tensors, scale_name: str = "scale_weight") -> Tensors:
    """Return matrices as 8-bit floats with one scale each, in addition to hints for the
    computation.
    """
    packed: Tensors = {}
    for key, tensor in tensors.items():
        if not key.endswith(".weight") or tensor.ndim != 2:
            packed[key] = tensor
            continue
        scale = tensor.abs().max().float() / 448
        packed[key] = (tensor.float() / scale).to(torch.float8_e4m3fn)
        layer = key.removesuffix(".weight")
        packed[f"{layer}.{scale_name}"] = scale
        packed[f"{layer}.scale_input"] = torch.tensor(1.0)
    return packed | {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
