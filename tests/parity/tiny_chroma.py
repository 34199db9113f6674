"""Tiny random Chroma checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    ChromaImg2ImgPipeline,
    ChromaInpaintPipeline,
    ChromaPipeline,
    ChromaTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
)
from transformers import T5EncoderModel

from tests.parity.tiny import (
    Config,
    _sharpen,
    _t5_config,
    _vae_config,
    randomize,
    t5_tokenizer,
)

_TRANSFORMER: Config = {
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 20,
    "num_attention_heads": 3,
    "axes_dims_rope": (4, 6, 10),
    "approximator_num_channels": 24,
    "approximator_hidden_dim": 34,
    "approximator_layers": 2,
}
_SCHEDULER: Config = {"use_beta_sigmas": True}


class _Masked:
    """Pipeline whose attention masks are truth values, as in the authors' code.

    Diffusers 0.42.1 passes them as numbers, which torch adds to the logits: padding is attended to.
    """

    def _prepare_attention_mask(self, *arguments: Any, **more: Any) -> torch.Tensor | None:
        """Return the mask of text and image; None: the prompt is not read."""
        mask = super()._prepare_attention_mask(*arguments, **more)
        return None if mask is None else mask.bool()


class MaskedChroma(_Masked, ChromaPipeline):
    """Text to image with masks."""


class MaskedFromImage(_Masked, ChromaImg2ImgPipeline):
    """Image to image with masks."""


class MaskedInpainting(_Masked, ChromaInpaintPipeline):
    """Inpainting with masks."""


def make_chroma(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    t5: Config | None = None,
    scheduler: Config | None = None,
    seed: int = 0,
    **save_kwargs: Any,
) -> Path:
    """Write a complete checkpoint in diffusers' layout to `folder` and return it.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them.
    """
    image = randomize(AutoencoderKL(**_vae_config(vae or {})), seed + 1)
    image.decoder.conv_out.weight.data *= 0.5  # most pixels in [-1, 1]; clipping hides errors
    text = randomize(T5EncoderModel(_t5_config(t5 or {})), seed + 2)
    sizes = {
        "in_channels": 4 * image.config.latent_channels,
        "joint_attention_dim": text.config.d_model,
    }
    network = randomize(
        ChromaTransformer2DModel(**(_TRANSFORMER | sizes | (transformer or {}))), seed + 3
    )
    _sharpen(network)
    ChromaPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**(_SCHEDULER | (scheduler or {}))),
        vae=image,
        text_encoder=text,
        tokenizer=t5_tokenizer(512),
        transformer=network,
    ).save_pretrained(folder, **save_kwargs)
    return folder
