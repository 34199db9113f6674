"""Tiny random Qwen-Image checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers import (
    AutoencoderKLQwenImage,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from tests.parity.tiny import Config, randomize
from tests.parity.tiny_qwen import qwen25, qwen_tokenizer

_TRANSFORMER: Config = {
    "num_layers": 3,
    "num_attention_heads": 3,
    "axes_dims_rope": (4, 6, 10),
}
_VAE: Config = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True],
}
_SCHEDULER: Config = {
    "use_dynamic_shifting": True,
    "base_image_seq_len": 4,
    "max_image_seq_len": 60,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
}


def make_qwenimage(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    scheduler: Config | None = None,
    seed: int = 0,
    kind: type[DiffusionPipeline] = QwenImagePipeline,
    **save_kwargs: Any,
) -> Path:
    """Writes a complete checkpoint in diffusers' layout to `folder` and returns it.

    Each dict overrides single values of that part's small default config; sizes that two parts
    share follow the part that makes them.
    """
    text = qwen25(seed + 2, **(text_encoder or {}))
    image = make_vae(seed + 1, **(vae or {}))
    given = _TRANSFORMER | (transformer or {})
    sizes = {
        "attention_head_dim": sum(given["axes_dims_rope"]),
        "in_channels": 4 * image.config.z_dim,
        "out_channels": image.config.z_dim,
        "joint_attention_dim": text.config.text_config.hidden_size,
    }
    network = randomize(QwenImageTransformer2DModel(**(given | sizes)), seed + 3)
    for name, parameter in network.named_parameters():
        if ".norm_" in name and name.endswith("weight"):
            parameter.data *= 1.5  # attention that picks a few keys: else single words are hidden
    kind(
        scheduler=FlowMatchEulerDiscreteScheduler(**(_SCHEDULER | (scheduler or {}))),
        vae=image,
        text_encoder=text,
        tokenizer=qwen_tokenizer(),
        transformer=network,
    ).save_pretrained(folder, **save_kwargs)
    return folder


def make_vae(seed: int, **overrides: Any) -> AutoencoderKLQwenImage:
    """An autoencoder whose latents have means and deviations by channel."""
    given = _VAE | overrides
    channels = range(given["z_dim"])
    statistics = {
        "latents_mean": [0.3 * channel - 0.5 for channel in channels],
        "latents_std": [0.8 + 0.2 * channel for channel in channels],
    }
    made = randomize(AutoencoderKLQwenImage(**given, **statistics), seed)
    for name, parameter in made.named_parameters():
        if name.endswith("gamma"):
            parameter.data = 1 + 0.2 * parameter.data
    made.decoder.conv_out.weight.data *= 1.2  # most pixels inside [-1, 1]: a clipped one is blind
    return made  # type: ignore[return-value]
