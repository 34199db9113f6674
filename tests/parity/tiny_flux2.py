"""Tiny random FLUX.2 checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
)

from tests.parity.tiny import Config, randomize
from tests.parity.tiny_mistral import mistral3, mistral_tokenizer
from tests.parity.tiny_qwen import qwen3, qwen_tokenizer

_TRANSFORMER: Config = {
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 20,
    "num_attention_heads": 3,
    "timestep_guidance_channels": 256,
    "axes_dims_rope": (4, 6, 8, 2),
    "guidance_embeds": False,
}
_VAE: Config = {
    "block_out_channels": (8, 12, 16),
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 4,
}
_TEXT: Config = {"num_hidden_layers": 28, "hidden_size": 12, "intermediate_size": 20}
"""The pipeline always reads states 9, 18 and 27."""
_DEV_TEXT: Config = {"num_hidden_layers": 31, "hidden_size": 12, "intermediate_size": 20}
"""The pipeline of dev always reads states 10, 20 and 30."""
SHIFTED: Config = {
    "shift": 3.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 1.15,
}


def flux2_vae(seed: int, **overrides: Any) -> AutoencoderKLFlux2:
    """Autoencoder with random weights and statistics far from 0 and 1."""
    config = _VAE | overrides
    depth = len(config["block_out_channels"])
    model = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * depth,
        up_block_types=("UpDecoderBlock2D",) * depth,
        **config,
    )
    randomize(model, seed)
    generator = torch.Generator("cpu").manual_seed(seed + 100)
    channels = model.bn.running_mean.shape
    model.bn.running_mean.copy_(0.3 * torch.randn(channels, generator=generator))
    model.bn.running_var.copy_(0.5 + torch.rand(channels, generator=generator))
    model.decoder.conv_out.weight.data *= 0.5  # most pixels in [-1, 1]; clipping hides errors
    return model


def flux2_transformer(seed: int, **overrides: Any) -> Flux2Transformer2DModel:
    """Transformer with random weights."""
    network = randomize(Flux2Transformer2DModel(**(_TRANSFORMER | overrides)), seed)
    for name, parameter in network.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight", "added_q.weight", "added_k.weight")):
            parameter.data *= 2.0  # sharper attention, so single words matter
    return network


def make_flux2(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    scheduler: Config | None = None,
    is_distilled: bool = False,
    seed: int = 0,
    **save_kwargs: Any,
) -> Path:
    """Write a complete checkpoint in diffusers' layout to `folder` and return it.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them.
    """
    text = qwen3(seed + 2, **(_TEXT | (text_encoder or {})))
    Flux2KleinPipeline(
        **_parts(seed, text.config.hidden_size, transformer, vae, scheduler),
        text_encoder=text,
        tokenizer=qwen_tokenizer(),
        is_distilled=is_distilled,
    ).save_pretrained(folder, **save_kwargs)
    return folder


def make_flux2_dev(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    scheduler: Config | None = None,
    padding_side: str = "left",
    seed: int = 0,
) -> Path:
    """Write a complete checkpoint of dev; the arguments are those of `make_flux2`."""
    text = mistral3(seed + 2, **(_DEV_TEXT | (text_encoder or {})))
    guided = {"guidance_embeds": True, **(transformer or {})}
    Flux2Pipeline(
        **_parts(seed, text.config.text_config.hidden_size, guided, vae, scheduler),
        text_encoder=text,
        tokenizer=mistral_tokenizer(padding_side),
    ).save_pretrained(folder)
    return folder


def _parts(
    seed: int,
    width: int,
    transformer: Config | None,
    vae: Config | None,
    scheduler: Config | None,
) -> dict[str, Any]:
    """Return the parts that dev and klein have in common.

    Args:
        width: features of the text encoder's hidden states.
    """
    image = flux2_vae(seed + 1, **(vae or {}))
    sizes = {
        "in_channels": 4 * image.config.latent_channels,
        "joint_attention_dim": 3 * width,
    }
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(**(SHIFTED | (scheduler or {}))),
        "vae": image,
        "transformer": flux2_transformer(seed + 3, **(sizes | (transformer or {}))),
    }
