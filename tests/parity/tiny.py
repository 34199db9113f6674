"""Tiny random Flux checkpoints, built by the reference libraries themselves.

The weights are random but not trivial: every norm, bias, modulation and embedding is far from its
initial value. Their scale keeps activations near 1, so a missing term is detectable.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)
from tokenizers import pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

Config = dict[str, Any]

SHARED = (
    "scheduler",
    "vae",
    "text_encoder",
    "tokenizer",
    "text_encoder_2",
    "tokenizer_2",
    "transformer",
)
"""Components of every Flux pipeline."""
WORDS = "a an the red green blue yellow circle square triangle star above below on of background"


def randomize(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Redraw every parameter: matrices keep their input's variance, vectors are far from 0.

    Norm scales become 1 ± 0.2, biases ± 0.2; all stay float32, in evaluation mode.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    norms = {id(module.weight) for module in model.modules() if _is_norm(module)}
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(0.2 * noise + (1.0 if id(parameter) in norms else 0.0))
            else:
                parameter.copy_(noise * (parameter.shape[0] / parameter.numel()) ** 0.5)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.weight.data *= module.embedding_dim**0.5 * 0.5
    return model.eval()


def _is_norm(module: torch.nn.Module) -> bool:
    return "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None


def clip_tokenizer(max_length: int) -> CLIPTokenizer:
    """Byte-level BPE with the merges of a few words; the end of text has the largest id."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges: list[tuple[str, str]] = []
    for word in WORDS.split():
        head, *tail = [*word[:-1], f"{word[-1]}</w>"]
        for letter in tail:
            if head + letter not in pieces:
                merges.append((head, letter))
                pieces.append(head + letter)
            head += letter
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=max_length)


def t5_tokenizer(max_length: int) -> T5Tokenizer:
    """Unigram model of a few words, their pieces and the printable ASCII characters."""
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    words = [(f"▁{word}", -3.0) for word in WORDS.split()]
    pairs = [("".join(pair), -8.0) for pair in product("aeiou", "lnrst")]
    letters = [("▁", -5.0), *((chr(code), -10.0) for code in range(33, 127))]
    vocab = [*special, *words, *pairs, *letters]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=max_length)


def make_flux(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    clip: Config | None = None,
    t5: Config | None = None,
    scheduler: Config | None = None,
    seed: int = 0,
    kind: type[DiffusionPipeline] = FluxPipeline,
    **save_kwargs: Any,
) -> Path:
    """Write a complete Flux checkpoint in diffusers' layout to `folder` and return it.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them. `save_kwargs` go to `save_pretrained` (`max_shard_size`, `variant`,
    …).

    Args:
        kind: of pipeline, with the same components.
    """
    pipeline = flux_pipeline(
        transformer=transformer, vae=vae, clip=clip, t5=t5, scheduler=scheduler, seed=seed
    )
    parts = {name: pipeline.components[name] for name in SHARED}
    kind(**parts).save_pretrained(folder, **save_kwargs)
    return folder


def flux_pipeline(
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    clip: Config | None = None,
    t5: Config | None = None,
    scheduler: Config | None = None,
    seed: int = 0,
) -> FluxPipeline:
    """The checkpoint of `make_flux` as a diffusers pipeline in memory, float32."""
    image = randomize(AutoencoderKL(**_vae_config(vae or {})), seed + 1)
    image.decoder.conv_out.weight.data *= 0.5  # most pixels in [-1, 1]; clipping hides errors
    text = randomize(CLIPTextModel(_clip_config(clip or {})), seed + 2)
    text_2 = randomize(T5EncoderModel(_t5_config(t5 or {})), seed + 3)
    sizes = {
        "in_channels": 4 * image.config.latent_channels,
        "joint_attention_dim": text_2.config.d_model,
        "pooled_projection_dim": text.config.hidden_size,
    }
    config = _TRANSFORMER | sizes | (transformer or {})
    network = randomize(FluxTransformer2DModel(**config), seed + 4)
    _sharpen(network)
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**(_SCHEDULER | (scheduler or {}))),
        vae=image,
        text_encoder=text,
        tokenizer=clip_tokenizer(text.config.max_position_embeddings),
        text_encoder_2=text_2,
        tokenizer_2=t5_tokenizer(512),
        transformer=network,
    )


def _sharpen(transformer: FluxTransformer2DModel) -> None:
    """Sharpen attention: nearly uniform attention would hide single words and positions."""
    for name, parameter in transformer.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight", "added_q.weight", "added_k.weight")):
            parameter.data *= 2.0


_TRANSFORMER: Config = {
    "patch_size": 1,
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 20,
    "num_attention_heads": 3,
    "guidance_embeds": True,
    "axes_dims_rope": (4, 6, 10),
}

_SCHEDULER: Config = {
    "shift": 3.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 1.15,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}


def _vae_config(overrides: Config) -> Config:
    config: Config = {
        "block_out_channels": (8, 12, 16),
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 4,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    } | overrides
    depth = len(config["block_out_channels"])
    blocks = {
        "down_block_types": ("DownEncoderBlock2D",) * depth,
        "up_block_types": ("UpDecoderBlock2D",) * depth,
    }
    return blocks | config


def _clip_config(overrides: Config) -> CLIPTextConfig:
    vocab = len(clip_tokenizer(77))
    config: Config = {
        "vocab_size": vocab,
        "hidden_size": 30,
        "intermediate_size": 52,
        "projection_dim": 30,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "bos_token_id": vocab - 2,
        "eos_token_id": vocab - 1,
        "pad_token_id": vocab - 1,
    }
    return CLIPTextConfig(**(config | overrides))


def _t5_config(overrides: Config) -> T5Config:
    config: Config = {
        "vocab_size": len(t5_tokenizer(512)) + 3,
        "d_model": 40,
        "d_kv": 7,
        "d_ff": 60,
        "num_layers": 3,
        "num_heads": 5,
        "feed_forward_proj": "gated-gelu",
    }
    return T5Config(**(config | overrides))
