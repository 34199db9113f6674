"""Tiny random IP-Adapters for an SDXL checkpoint, with the names of the published files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.embeddings import IPAdapterPlusImageProjection
from safetensors.torch import save_file
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from tests.parity.tiny import Config, randomize

PLAIN_TOKENS = 4
"""Tokens of a plain adapter in diffusers."""
_ENCODER: Config = {
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "image_size": 23,
    "patch_size": 5,
    "projection_dim": 21,
}
_PLUS = (
    (r"layers\.(\d)\.ln0", r"layers.\1.0.norm1"),
    (r"layers\.(\d)\.ln1", r"layers.\1.0.norm2"),
    (r"layers\.(\d)\.attn\.to_out\.0", r"layers.\1.0.to_out"),
    (r"layers\.(\d)\.attn", r"layers.\1.0"),
    (r"layers\.(\d)\.ff\.0", r"layers.\1.1.0"),
    (r"layers\.(\d)\.ff\.1\.net\.0\.proj", r"layers.\1.1.1"),
    (r"layers\.(\d)\.ff\.1\.net\.2", r"layers.\1.1.3"),
)


def make_encoder(folder: Path, seed: int = 11, **overrides: Any) -> CLIPVisionModelWithProjection:
    """Write an image encoder in transformers' layout."""
    config = CLIPVisionConfig(**{**_ENCODER, **overrides})
    encoder = randomize(CLIPVisionModelWithProjection(config), seed)
    encoder.save_pretrained(folder)
    return encoder


def make_plain(file: Path, unet: UNet2DConditionModel, features: int, seed: int = 12) -> Path:
    """Write an adapter that reads an image's projected class token."""
    text = unet.config.cross_attention_dim
    generator = torch.Generator("cpu").manual_seed(seed)
    weight = torch.randn(PLAIN_TOKENS * text, features, generator=generator) * features**-0.5
    projection = {
        "proj.weight": weight,
        "proj.bias": 0.2 * torch.randn(len(weight), generator=generator),
        "norm.weight": 1 + 0.2 * torch.randn(text, generator=generator),
        "norm.bias": 0.2 * torch.randn(text, generator=generator),
    }
    return _write(file, projection, unet, generator)


def make_plus(file: Path, unet: UNet2DConditionModel, features: int, seed: int = 13) -> Path:
    """Write an adapter that resamples the patches."""
    text = unet.config.cross_attention_dim
    sizes = {"hidden_dims": 26, "heads": 2, "num_queries": 5}
    module = IPAdapterPlusImageProjection(embed_dims=features, output_dims=text, **sizes)
    state = randomize(module, seed).state_dict()
    named = {_spelled(name): array for name, array in state.items()}
    for layer in range(len(module.layers)):
        k, v = (named.pop(f"layers.{layer}.0.to_{letter}.weight") for letter in ("k", "v"))
        named[f"layers.{layer}.0.to_kv.weight"] = torch.cat([k, v])
    return _write(file, named, unet, torch.Generator("cpu").manual_seed(seed))


def _spelled(name: str) -> str:
    for pattern, published in _PLUS:
        name = re.sub(pattern, published, name)
    return name


def _write(file: Path, projection: Config, unet: UNet2DConditionModel, generator: Any) -> Path:
    arrays = {f"image_proj.{name}": array.contiguous() for name, array in projection.items()}
    text = unet.config.cross_attention_dim
    for number, name in enumerate(unet.attn_processors):
        if ".attn2." in name:
            width = unet.get_submodule(name.removesuffix(".processor")).to_q.out_features
            for letter in ("k", "v"):
                weight = torch.randn(width, text, generator=generator) * text**-0.5
                arrays[f"ip_adapter.{number}.to_{letter}_ip.weight"] = weight
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(arrays, file)
    return file
