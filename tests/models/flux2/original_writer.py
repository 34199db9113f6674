"""Convert a FLUX.2 folder in diffusers' layout to single files with the authors' keys.

Uses only the folder's arrays and configs, none of the rename tables under test.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.models.sdxl import original_writer
from tests.models.single_files import Tensors

_TIME, _GUIDANCE = (f"time_guidance_embed.{kind}_embedder." for kind in ("timestep", "guidance"))
NAMES = (
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    (f"{_TIME}linear_1", "time_in.in_layer"),
    (f"{_TIME}linear_2", "time_in.out_layer"),
    (f"{_GUIDANCE}linear_1", "guidance_in.in_layer"),
    (f"{_GUIDANCE}linear_2", "guidance_in.out_layer"),
    ("modulation_img.linear", "modulation_img.lin"),
    ("modulation_txt.linear", "modulation_txt.lin"),
    ("stream_modulation.linear", "stream_modulation.lin"),
    ("norm_out.linear", "final_layer.adaLN_modulation.1"),
    ("proj_out", "final_layer.linear"),
    ("single_transformer_blocks.", "single_blocks."),
    ("transformer_blocks.", "double_blocks."),
    ("attn.to_qkv_mlp_proj", "linear1"),
    ("attn.to_out.0", "img_attn.proj"),
    ("attn.to_add_out", "txt_attn.proj"),
    ("attn.to_out", "linear2"),
    ("ff.linear_in", "img_mlp.0"),
    ("ff.linear_out", "img_mlp.2"),
    ("ff_context.linear_in", "txt_mlp.0"),
    ("ff_context.linear_out", "txt_mlp.2"),
)
"""Parts of diffusers' names, with the authors' equivalents."""
_NORMS = {"q": "query", "k": "key"}


def renamed(name: str) -> str:
    """Return the authors' name of a layer that is not fused with another."""
    for part, original in NAMES:
        name = name.replace(part, original)
    return name


def transformer(folder: Path) -> Tensors:
    """Return the transformer's arrays under the authors' keys."""
    stored = load_file(folder / "diffusion_pytorch_model.safetensors")
    renamed_tensors: Tensors = {}
    for key, tensor in stored.items():
        if match := re.fullmatch(r"(transformer_blocks\.\d+\.)attn\.to_q\.weight", key):
            block = renamed(match[1])
            image, text = (
                [stored[f"{match[1]}attn.{name.format(letter)}.weight"] for letter in "qkv"]
                for name in ("to_{}", "add_{}_proj")
            )
            renamed_tensors[f"{block}img_attn.qkv.weight"] = torch.cat(image)
            renamed_tensors[f"{block}txt_attn.qkv.weight"] = torch.cat(text)
        elif match := re.fullmatch(r"(.*)attn\.norm_(added_)?([qk])\.weight", key):
            stream = "" if key.startswith("single") else "txt_attn." if match[2] else "img_attn."
            name = f"{renamed(match[1])}{stream}norm.{_NORMS[match[3]]}_norm.scale"
            renamed_tensors[name] = tensor
        elif not re.search(r"attn\.(to_[qkv]|add_[qkv]_proj)\.", key):
            is_last = key == "norm_out.linear.weight"
            renamed_tensors[renamed(key)] = torch.cat(tensor.chunk(2)[::-1]) if is_last else tensor
    return renamed_tensors


def vae(folder: Path) -> Tensors:
    """Return the autoencoder's arrays under the authors' keys."""
    inside = {"quant_conv": "encoder.quant_conv", "post_quant_conv": "decoder.post_quant_conv"}
    return {
        f"{inside[key.partition('.')[0]]}.{key.partition('.')[2]}"
        if key.partition(".")[0] in inside
        else key: tensor
        for key, tensor in original_writer.vae(folder).items()
    }


LANGUAGE_MODEL = "language_model.model."
OTHER_KEYS = ("vision_tower.", "multi_modal_projector.", "language_model.lm_head.")
"""Beginnings of keys of a Mistral Small 3."""


def all_in_one(folder: Path, autoencoder: Tensors, encoder: str = "qwen3_4b") -> Tensors:
    """Return the arrays of ComfyUI's complete checkpoints."""
    text = load_file(folder / "text_encoder/model.safetensors")
    of_transformer = transformer(folder / "transformer")
    return {
        **{f"model.diffusion_model.{key}": t for key, t in of_transformer.items()},
        **{
            f"text_encoders.{encoder}.transformer.model.{key.removeprefix(LANGUAGE_MODEL)}": t
            for key, t in text.items()
            if not key.startswith(OTHER_KEYS)
        },
        **{f"vae.{key}": t for key, t in autoencoder.items()},
    }
