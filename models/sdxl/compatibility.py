"""Compatibility of a checkpoint's parts: whether they fit each other and are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from models.checkpoint.folder import UnsupportedCheckpoint
from models.sdxl.config import UNetConfig
from models.text.clip import ClipConfig
from models.vae.config import VaeConfig

SCORE = "requires_aesthetics_score"
"""Entry of a refiner's `model_index.json`."""
TIME_IDS = 6
"""Original size, crop and target size: two numbers each."""
SCORED_TIME_IDS = 5
"""Original size and crop, and the aesthetic score."""

CLASSES: Mapping[str, str] = {
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "CLIPTextModelWithProjection",
    "unet": "UNet2DConditionModel",
    "vae": "AutoencoderKL",
}
"""Network → its class in `model_index.json`. Another one (a distilled autoencoder, a first encoder
with a projection, whose pooled output diffusers would take) is another network."""
TOKENIZERS: Mapping[str, str] = {"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"}
OPTIONAL = "text_encoder"
"""Encoder that a refiner is without, and its tokenizer."""


class Parts(NamedTuple):
    """The configs of one checkpoint's networks."""

    unet: UNetConfig
    clip: ClipConfig | None
    """Config of the first encoder; None: a refiner has the second one alone."""
    clip_2: ClipConfig
    vae: VaeConfig
    scored: bool = False
    """True if it is told an aesthetic score in place of a target size, as refiners are."""

    @property
    def towers(self) -> tuple[ClipConfig, ...]:
        """Return the configs of the encoders that there are."""
        return (self.clip_2,) if self.clip is None else (self.clip, self.clip_2)


def check_index(index: Mapping[str, Any]) -> None:
    """Check the kinds of a checkpoint's parts.

    Raises: UnsupportedCheckpoint: `model_index.json` is of a kind with other parts.
    """
    absent = set() if has_both_encoders(index) else {OPTIONAL, TOKENIZERS[OPTIONAL]}
    for part in (*CLASSES, *TOKENIZERS.values()):
        if part not in absent and not _is_there(index.get(part)):
            raise UnsupportedCheckpoint(
                f"model_index.json names no {part}: checkpoints without it are not served"
            )
    for part, served in CLASSES.items():
        if part not in absent and (name := index[part][1]) != served:
            raise UnsupportedCheckpoint(f"model_index.json: the {part} {name} is not {served}")


def has_both_encoders(index: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint names any part of a first encoder."""
    return any(_is_there(index.get(part)) for part in (OPTIONAL, TOKENIZERS[OPTIONAL]))


def _is_there(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and entry[1] is not None


def check_fit(parts: Parts) -> None:
    """Check that the parts of a checkpoint fit.

    Raises: ValueError: two parts have different sizes where they meet; names both.
    """
    unet, clip_2, vae = parts.unet, parts.clip_2, parts.vae
    numbers = SCORED_TIME_IDS if parts.scored else TIME_IDS
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
            "hidden_size of the text encoders together",
            sum(tower.hidden_size for tower in parts.towers),
        ),
        (
            "unet projection_class_embeddings_input_dim",
            unet.projection_class_embeddings_input_dim,
            f"{numbers} * addition_time_embed_dim + text_encoder_2 projection_dim",
            numbers * sizes + clip_2.projection_dim,
        ),
        ("unet out_channels", unet.out_channels, "vae latent_channels", vae.latent_channels),
        ("vae in_channels", vae.in_channels, "the colours of an image", 3),
        ("vae out_channels", vae.out_channels, "the colours of an image", 3),
    )
    for ours, a, theirs, b in pairs:
        if a != b:
            raise ValueError(f"{ours} is {a}, but {theirs} is {b}: the parts do not fit")
