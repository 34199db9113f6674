"""Tiny random Z-Image checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers import (
    AutoencoderKL,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    ZImageControlNetModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)

from tests.parity.tiny import Config, _vae_config, randomize
from tests.parity.tiny_qwen import qwen3, qwen_tokenizer

_TRANSFORMER: Config = {
    "n_layers": 3,
    "n_refiner_layers": 2,
    "n_heads": 3,
    "axes_dims": (4, 6, 10),
    "axes_lens": (640, 64, 64),
}


def make_zimage(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    shift: float = 6.0,
    seed: int = 0,
    kind: type[DiffusionPipeline] = ZImagePipeline,
    **save_kwargs: Any,
) -> Path:
    """Write a complete checkpoint in diffusers' layout to `folder` and return it.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them.
    """
    image = randomize(AutoencoderKL(**_vae_config(vae or {})), seed + 1)
    image.decoder.conv_out.weight.data *= 0.5  # most pixels in [-1, 1]; clipping hides errors
    text = qwen3(seed + 2, **(text_encoder or {}))
    config = _TRANSFORMER | (transformer or {})
    sizes = {
        "dim": config["n_heads"] * sum(config["axes_dims"]),
        "n_kv_heads": config["n_heads"],
        "in_channels": image.config.latent_channels,
        "cap_feat_dim": text.config.hidden_size,
    }
    network = randomize(ZImageTransformer2DModel(**(config | sizes)), seed + 3)
    for name, parameter in network.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight")):
            parameter.data *= 1.5  # sharper attention, so single words matter
        if name.endswith("pad_token"):
            parameter.data *= parameter.shape[-1] ** 0.5
    kind(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
        vae=image,
        text_encoder=text,
        tokenizer=qwen_tokenizer(),
        transformer=network,
    ).save_pretrained(folder, **save_kwargs)
    return folder


CONTROL_SHARED = ("dim", "n_heads", "n_kv_heads", "norm_eps", "qk_norm", "n_refiner_layers")
"""Fields that a ControlNet takes from its transformer by default."""


def make_control(folder: Path, checkpoint: Path, seed: int, **overrides: Any) -> Any:
    """Write a ControlNet of two layers for that checkpoint's transformer; return it."""
    base = ZImageTransformer2DModel.load_config(checkpoint / "transformer")
    config = {
        **{name: base[name] for name in CONTROL_SHARED},
        "control_layers_places": [0, 1],
        "control_in_dim": base["in_channels"],
        **overrides,
    }
    network = randomize(ZImageControlNetModel(**config), seed)
    network.save_pretrained(folder)
    return network
