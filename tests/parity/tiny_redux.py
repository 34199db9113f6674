"""Tiny random Redux checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import FluxPriorReduxPipeline
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel

from tests.parity.tiny import randomize

SIGLIP: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 23,
    "patch_size": 5,
}
JOINT = 40
"""Width of T5's embeddings in `make_flux`'s checkpoints."""


def make_redux(
    folder: Path, *, siglip: dict[str, Any] | None = None, joint: int = JOINT, seed: int = 20
) -> Path:
    """Write a complete Redux checkpoint in diffusers' layout to `folder` and return it.

    Args:
        siglip: single values of the image encoder's config.
        joint: width of the model's T5.
    """
    config = SIGLIP | (siglip or {})
    encoder = randomize(SiglipVisionModel(SiglipVisionConfig(**config)), seed)
    embedder = randomize(ReduxImageEncoder(config["hidden_size"], joint), seed + 1)
    with torch.no_grad():  # as large as T5's tokens; smaller ones would have no visible effect
        embedder.redux_down.weight *= 2
    side = config["image_size"]
    pipeline = FluxPriorReduxPipeline(
        image_encoder=encoder,
        feature_extractor=SiglipImageProcessor(size={"height": side, "width": side}),
        image_embedder=embedder,
    )
    pipeline.save_pretrained(folder)
    return folder
