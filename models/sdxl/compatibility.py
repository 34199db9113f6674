"""Checks that a checkpoint's networks are supported and fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from models.checkpoint.folder import UnsupportedCheckpoint
from models.sdxl.config import UNetConfig
from models.sdxl.family import CLASSES
from models.text.clip import ClipConfig
from models.vae.config import VaeConfig

SCORE = "requires_aesthetics_score"
"""Key of `model_index.json` that marks a refiner with an aesthetic score."""
TIME_IDS = 6
"""Size inputs of a base model: original size, crop and target size, two numbers each."""
SCORED_TIME_IDS = 5
"""Size inputs of a refiner: original size, crop, and the aesthetic score."""

TOKENIZERS: Mapping[str, str] = {"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"}
OPTIONAL = "text_encoder"
"""Text encoder that a refiner does not have; its tokenizer is missing as well."""


class Parts(NamedTuple):
    """Configs of the networks of one SDXL checkpoint."""

    unet: UNetConfig
    clip: ClipConfig | None
    """Config of the first text encoder; None for a refiner, which has the second encoder only."""
    clip_2: ClipConfig
    vae: VaeConfig
    scored: bool = False
    """Whether an aesthetic score replaces the target size, as in refiners."""

    @property
    def towers(self) -> tuple[ClipConfig, ...]:
        """Configs of the checkpoint's text encoders."""
        return (self.clip_2,) if self.clip is None else (self.clip, self.clip_2)


def check_index(index: Mapping[str, Any]) -> None:
    """Check that `model_index.json` lists exactly the supported network classes.

    Raises: UnsupportedCheckpoint: a network is missing or of another class.
    """
    absent = set() if has_both_encoders(index) else {OPTIONAL, TOKENIZERS[OPTIONAL]}
    for part in (*CLASSES, *TOKENIZERS.values()):
        if part not in absent and not _is_present(index.get(part)):
            raise UnsupportedCheckpoint(
                f"model_index.json names no {part}: checkpoints without it are not served"
            )
    for part, served in CLASSES.items():
        if part not in absent and (name := index[part][1]) != served:
            raise UnsupportedCheckpoint(f"model_index.json: the {part} {name} is not {served}")


def has_both_encoders(index: Mapping[str, Any]) -> bool:
    """Return whether `model_index.json` lists the first text encoder or its tokenizer."""
    return any(_is_present(index.get(part)) for part in (OPTIONAL, TOKENIZERS[OPTIONAL]))


def _is_present(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and entry[1] is not None


def check_fit(parts: Parts) -> None:
    """Check that the networks' sizes match at their interfaces.

    Raises: ValueError: two sizes differ; names both.
    """
    unet, clip_2, vae = parts.unet, parts.clip_2, parts.vae
    numbers = SCORED_TIME_IDS if parts.scored else TIME_IDS
    if unet.addition_embed_type != "text_time":
        raise ValueError(
            f"unet addition_embed_type {unet.addition_embed_type!r} is not SDXL's, 'text_time'"
        )
    sizes = unet.addition_time_embed_dim
    assert sizes is not None  # validated by UNetConfig
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
    for field, a, other, b in pairs:
        if a != b:
            raise ValueError(f"{field} is {a}, but {other} is {b}: the parts do not fit")
