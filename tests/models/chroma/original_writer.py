"""Chroma's weights under the authors' keys, for tests; uses none of the rename tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.models.single_files import Tensors

_GUIDANCE = "distilled_guidance_layer"
_OUTER = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "final_layer.linear": "proj_out",
    f"{_GUIDANCE}.in_proj": f"{_GUIDANCE}.in_proj",
    f"{_GUIDANCE}.out_proj": f"{_GUIDANCE}.out_proj",
}
_IN_BLOCKS = {
    f"{_GUIDANCE}.layers.{{}}.in_layer": f"{_GUIDANCE}.layers.{{}}.linear_1",
    f"{_GUIDANCE}.layers.{{}}.out_layer": f"{_GUIDANCE}.layers.{{}}.linear_2",
    "double_blocks.{}.img_attn.qkv": "transformer_blocks.{}.attn.to_q to_k to_v",
    "double_blocks.{}.txt_attn.qkv": "transformer_blocks.{}.attn.add_q_proj add_k_proj add_v_proj",
    "double_blocks.{}.img_attn.proj": "transformer_blocks.{}.attn.to_out.0",
    "double_blocks.{}.txt_attn.proj": "transformer_blocks.{}.attn.to_add_out",
    "double_blocks.{}.img_mlp.0": "transformer_blocks.{}.ff.net.0.proj",
    "double_blocks.{}.img_mlp.2": "transformer_blocks.{}.ff.net.2",
    "double_blocks.{}.txt_mlp.0": "transformer_blocks.{}.ff_context.net.0.proj",
    "double_blocks.{}.txt_mlp.2": "transformer_blocks.{}.ff_context.net.2",
    "single_blocks.{}.linear1": "single_transformer_blocks.{}.attn.to_q to_k to_v .proj_mlp",
    "single_blocks.{}.linear2": "single_transformer_blocks.{}.proj_out",
}
"""Authors' names of layers → diffusers' names. Further names are of fused layers, in the module of
the first, or with a dot at their beginning in the module around it."""
_NORMS = (
    (rf"{_GUIDANCE}\.norms\.(\d+)\.weight", rf"{_GUIDANCE}.norms.\1.scale"),
    (
        r"single_transformer_blocks\.(\d+)\.attn\.norm_q\.weight",
        r"single_blocks.\1.norm.query_norm.scale",
    ),
    (
        r"single_transformer_blocks\.(\d+)\.attn\.norm_k\.weight",
        r"single_blocks.\1.norm.key_norm.scale",
    ),
    (
        r"transformer_blocks\.(\d+)\.attn\.norm_q\.weight",
        r"double_blocks.\1.img_attn.norm.query_norm.scale",
    ),
    (
        r"transformer_blocks\.(\d+)\.attn\.norm_k\.weight",
        r"double_blocks.\1.img_attn.norm.key_norm.scale",
    ),
    (
        r"transformer_blocks\.(\d+)\.attn\.norm_added_q\.weight",
        r"double_blocks.\1.txt_attn.norm.query_norm.scale",
    ),
    (
        r"transformer_blocks\.(\d+)\.attn\.norm_added_k\.weight",
        r"double_blocks.\1.txt_attn.norm.key_norm.scale",
    ),
)


def fused_layers(names: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the authors' name of each layer, and diffusers' names of the layers that it fuses."""
    numbers = sorted({part for name in names for part in name.split(".") if part.isdecimal()})
    for original, parts in (_OUTER | _IN_BLOCKS).items():
        for number in numbers if "{}" in original else ("",):
            layers = tuple(_spelled_out(parts.format(number)))
            if layers[0] in names:
                yield original.format(number), layers


def _spelled_out(parts: str) -> Iterator[str]:
    first, *others = parts.split()
    yield first
    module = first.rpartition(".")[0]
    for name in others:
        yield module.rpartition(".")[0] + name if name.startswith(".") else f"{module}.{name}"


def transformer(folder: Path) -> Tensors:
    """Return the transformer's arrays under the authors' keys."""
    stored = load_file(folder / "transformer/diffusion_pytorch_model.safetensors")
    written = {
        f"{original}.{array}": torch.cat([stored[f"{layer}.{array}"] for layer in layers])
        for original, layers in fused_layers({key.rpartition(".")[0] for key in stored})
        for array in ("weight", "bias")
    }
    for key, tensor in stored.items():
        for expression, original in _NORMS:
            if match := re.fullmatch(expression, key):
                written[match.expand(original)] = tensor
    return written
