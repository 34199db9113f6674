"""Compatibility of a checkpoint's parts: whether they fit each other and are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from models.checkpoint.folder import UnsupportedCheckpoint
from models.sdxl.config import UNetConfig
from models.text.clip import ClipConfig
from models.vae.config import VaeConfig

TIME_IDS = 6
"""Original size, crop and target size: two numbers each."""

CLASSES: Mapping[str, str] = {
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "CLIPTextModelWithProjection",
    "unet": "UNet2DConditionModel",
    "vae": "AutoencoderKL",
}
"""Network → its class in `model_index.json`. Another one (a distilled autoencoder, a first encoder
with a projection, whose pooled output diffusers would take) is another network."""
TOKENIZERS = ("tokenizer", "tokenizer_2")


class Parts(NamedTuple):
    """The configs of one checkpoint's networks."""

    unet: UNetConfig
    clip: ClipConfig
    clip_2: ClipConfig
    vae: VaeConfig


def check_index(index: Mapping[str, Any]) -> None:
    """Check the kinds of a checkpoint's parts.

    Raises: UnsupportedCheckpoint: `model_index.json` is of a kind with other parts.
    """
    if index.get("requires_aesthetics_score"):
        raise UnsupportedCheckpoint(
            "model_index.json says requires_aesthetics_score: a refiner, which is told an "
            "aesthetic score instead of a target size; serve a base model instead"
        )
    for part in (*CLASSES, *TOKENIZERS):
        if not _is_there(index.get(part)):
            raise UnsupportedCheckpoint(
                f"model_index.json names no {part}: checkpoints without it (as the refiner is "
                "without its text_encoder) are not served"
            )
    for part, served in CLASSES.items():
        if (name := index[part][1]) != served:
            raise UnsupportedCheckpoint(f"model_index.json: the {part} {name} is not {served}")


def _is_there(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and entry[1] is not None


def check_fit(parts: Parts) -> None:
    """Check that the parts of a checkpoint fit.

    Raises: ValueError: two parts have different sizes where they meet; names both.
    """
    unet, clip, clip_2, vae = parts
    if unet.addition_embed_type != "text_time":
        raise ValueError(
            f"unet addition_embed_type {unet.addition_embed_type!r} is not SDXL's, 'text_time'"
        )
    sizes = unet.addition_time_embed_dim
    assert sizes is not None  # UNetConfig sees to it
    pairs = (
        (
            "unet cross_attention_dim",
            unet.text_features,
            "hidden_size of text_encoder and text_encoder_2 together",
            clip.hidden_size + clip_2.hidden_size,
        ),
        (
            "unet projection_class_embeddings_input_dim",
            unet.projection_class_embeddings_input_dim,
            f"{TIME_IDS} * addition_time_embed_dim + text_encoder_2 projection_dim",
            TIME_IDS * sizes + clip_2.projection_dim,
        ),
        ("unet out_channels", unet.out_channels, "vae latent_channels", vae.latent_channels),
        ("vae in_channels", vae.in_channels, "the colours of an image", 3),
        ("vae out_channels", vae.out_channels, "the colours of an image", 3),
    )
    for ours, a, theirs, b in pairs:
        if a != b:
            raise ValueError(f"{ours} is {a}, but {theirs} is {b}: the parts do not fit")
