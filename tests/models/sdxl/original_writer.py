"""Convert an SDXL folder in diffusers' layout to one file with the original keys.

Uses only the folder's arrays and configs, none of the rename tables under test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]

EXTRAS: Tensors = {
    "model_ema.decay": torch.tensor(0.5),
    "model_ema.diffusion_modelinput_blocks00weight": torch.zeros(3),
    "denoiser.sigmas": torch.zeros(1000),
    "alphas_cumprod": torch.zeros(1000),
    "first_stage_model.loss.logvar": torch.zeros(()),
    "conditioner.embedders.0.transformer.text_model.embeddings.position_ids": torch.arange(77)[
        None
    ],
    "conditioner.embedders.0.transformer.text_projection.weight": torch.zeros(3, 3),
    "conditioner.embedders.1.model.logit_scale": torch.tensor(4.6),
    "conditioner.embedders.1.model.text_model.embeddings.position_ids": torch.arange(77)[None],
}
"""Additional tensors that files of various origins contain."""

_UNET = (
    (r"time_embedding\.linear_(\d)", lambda m: f"time_embed.{0 if m[1] == '1' else 2}"),
    (r"add_embedding\.linear_(\d)", lambda m: f"label_emb.0.{0 if m[1] == '1' else 2}"),
    (r"conv_in", lambda m: "input_blocks.0.0"),
    (r"conv_norm_out", lambda m: "out.0"),
    (r"conv_out", lambda m: "out.2"),
)
_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_VAE = (
    (r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}"),
    (r"mid_block\.attentions\.0\.group_norm", lambda m: "mid.attn_1.norm"),
    (r"mid_block\.attentions\.0\.to_([qkv])", lambda m: f"mid.attn_1.{m[1]}"),
    (r"mid_block\.attentions\.0\.to_out\.0", lambda m: "mid.attn_1.proj_out"),
    (r"down_blocks\.(\d)\.resnets", lambda m: f"down.{m[1]}.block"),
    (r"down_blocks\.(\d)\.downsamplers\.0", lambda m: f"down.{m[1]}.downsample"),
    (r"conv_norm_out", lambda m: "norm_out"),
    (r"conv_shortcut", lambda m: "nin_shortcut"),
)
_OPEN_CLIP = (
    (r"embeddings\.token_embedding", lambda m: "token_embedding"),
    (r"encoder\.layers\.(\d+)\.", lambda m: f"transformer.resblocks.{m[1]}."),
    (r"layer_norm(\d)", lambda m: f"ln_{m[1]}"),
    (r"self_attn\.out_proj", lambda m: "attn.out_proj"),
    (r"mlp\.fc1", lambda m: "mlp.c_fc"),
    (r"mlp\.fc2", lambda m: "mlp.c_proj"),
    (r"final_layer_norm", lambda m: "ln_final"),
)


def write_original(folder: Path, file: Path) -> Path:
    """Write one file with the arrays of all four components, and with `EXTRAS`."""
    parts = {
        "model.diffusion_model.": unet(folder / "unet"),
        "first_stage_model.": vae(folder / "vae"),
        "conditioner.embedders.0.transformer.text_model.": clip(folder / "text_encoder"),
        "conditioner.embedders.1.model.": open_clip(folder / "text_encoder_2"),
    }
    named = {prefix + key: t for prefix, part in parts.items() for key, t in part.items()}
    save_file({key: t.contiguous() for key, t in (named | EXTRAS).items()}, file)
    return file


def write_refiner(folder: Path, file: Path) -> Path:
    """Write one file of a refiner, whose only text encoder is embedder 0."""
    parts = {
        "model.diffusion_model.": unet(folder / "unet"),
        "first_stage_model.": vae(folder / "vae"),
        "conditioner.embedders.0.model.": open_clip(folder / "text_encoder_2"),
    }
    named = {prefix + key: t for prefix, part in parts.items() for key, t in part.items()}
    extras = {"conditioner.embedders.0.model.logit_scale": torch.tensor(4.6)}
    save_file({key: t.contiguous() for key, t in (named | extras).items()}, file)
    return file


def write_cldm(folder: Path, file: Path, prefix: str = "control_model.") -> Path:
    """Write one file with a ControlNet's arrays under the names of Zhang's cldm."""
    config = json.loads((folder / "config.json").read_text())
    last = 2 * (2 * len(config["conditioning_embedding_out_channels"]) - 1)
    rules = (
        (r"controlnet_cond_embedding\.conv_in", lambda m: "input_hint_block.0"),
        (
            r"controlnet_cond_embedding\.blocks\.(\d)",
            lambda m: f"input_hint_block.{2 * int(m[1]) + 2}",
        ),
        (r"controlnet_cond_embedding\.conv_out", lambda m: f"input_hint_block.{last}"),
        (r"controlnet_down_blocks\.(\d+)", lambda m: f"zero_convs.{m[1]}.0"),
        (r"controlnet_mid_block", lambda m: "middle_block_out.0"),
    )
    stored = _renamed(load_file(folder / "diffusion_pytorch_model.safetensors"), rules)
    named = way_down(stored, config)
    save_file({prefix + key: tensor.contiguous() for key, tensor in named.items()}, file)
    return file


def unet(folder: Path) -> Tensors:
    """Arrays of a UNet: blocks have one running index, and resampling is a block or a block's last
    part.
    """
    config = json.loads((folder / "config.json").read_text())
    assert len(config["block_out_channels"]) == len(config["up_block_types"])
    return way_down(load_file(folder / "diffusion_pytorch_model.safetensors"), config)


def way_down(stored: Tensors, config: dict[str, Any]) -> Tensors:
    """Arrays of a UNet, or of a ControlNet, which has no up blocks."""
    layers = config["layers_per_block"]

    def down(m: re.Match[str]) -> str:
        level, part, index = int(m[1]), m[2], int(m[3])
        if part == "downsamplers":
            return f"input_blocks.{(level + 1) * (layers + 1)}.0.op"
        number = 1 + level * (layers + 1) + index
        return f"input_blocks.{number}.{0 if part == 'resnets' else 1}"

    def up(m: re.Match[str]) -> str:
        level, part, index = int(m[1]), m[2], int(m[3])
        first = level * (layers + 1)
        if part == "upsamplers":
            part_index = 2 if config["up_block_types"][level].startswith("CrossAttn") else 1
            return f"output_blocks.{first + layers}.{part_index}.conv"
        return f"output_blocks.{first + index}.{0 if part == 'resnets' else 1}"

    def mid(m: re.Match[str]) -> str:
        return f"middle_block.{1 if m[1] == 'attentions' else 2 * int(m[2])}"

    rules = (
        (r"down_blocks\.(\d)\.(\w+)\.(\d)(?:\.conv(?=\.))?", down),
        (r"up_blocks\.(\d)\.(\w+)\.(\d)(?:\.conv(?=\.))?", up),
        (r"mid_block\.(\w+)\.(\d)", mid),
        *_UNET,
    )
    named = _renamed(stored, rules)
    return {_resnet(key): tensor for key, tensor in named.items()}


def _resnet(key: str) -> str:
    place, name, kind = key.rsplit(".", 2)
    return f"{place}.{_RESNET.get(name, name)}.{kind}" if "transformer_blocks" not in key else key


def vae(folder: Path) -> Tensors:
    """Arrays of a VAE: decoder levels count from the top, and attention layers are 1 x 1
    convolutions.
    """
    last = len(json.loads((folder / "config.json").read_text())["block_out_channels"]) - 1
    rules = (
        (r"up_blocks\.(\d)\.resnets", lambda m: f"up.{last - int(m[1])}.block"),
        (r"up_blocks\.(\d)\.upsamplers\.0", lambda m: f"up.{last - int(m[1])}.upsample"),
        *_VAE,
    )
    named = _renamed(load_file(folder / "diffusion_pytorch_model.safetensors"), rules)
    return {
        key: t[:, :, None, None] if re.search(r"attn_1\.(q|k|v|proj_out)\.weight", key) else t
        for key, t in named.items()
    }


def clip(folder: Path) -> Tensors:
    """Arrays with transformers' older names, without the prefix `text_model`."""
    stored = load_file(folder / "model.safetensors")
    return {key.removeprefix("text_model."): tensor for key, tensor in stored.items()}


def open_clip(folder: Path) -> Tensors:
    """Arrays with OpenCLIP's names: queries, keys and values fused, the projection as (in, out)."""
    stored = clip(folder)
    tensors: Tensors = {
        "positional_embedding": stored.pop("embeddings.position_embedding.weight"),
        "text_projection": stored.pop("text_projection.weight").T,
    }
    for key in [key for key in stored if ".q_proj." in key]:
        three = [stored.pop(key.replace(".q_proj.", f".{name}_proj.")) for name in "qkv"]
        fused = key.replace("self_attn.q_proj.", "attn.in_proj_")
        tensors |= _renamed({fused: torch.cat(three)}, _OPEN_CLIP)
    return tensors | _renamed(stored, _OPEN_CLIP)


def _renamed(
    tensors: Tensors, rules: tuple[tuple[str, Callable[[re.Match[str]], str]], ...]
) -> Tensors:
    """Apply every rule once, in order, at each matching position of a key."""
    named: Tensors = {}
    for key, tensor in tensors.items():
        for expression, name in rules:
            key = re.sub(rf"(?<![^.]){expression}", name, key)
        named[key] = tensor
    return named
