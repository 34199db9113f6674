"""Reads a Qwen-Image 2.1 checkpoint folder in diffusers' layout; `edit.load` loads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_model_index
from models.flow import parts
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, Network
from models.loading.preview import flat_frame_encoder
from models.loading.sources import Reading
from models.qwenimage21.config import QwenImage21Config
from models.qwenimage21.family import FAMILY
from models.qwenimage21.key_mapping import NAMINGS, RENAMES
from models.qwenimage21.network import QwenImage21Transformer
from models.qwenimage21.pipeline import ANALYZING, QwenImage21Pipeline
from models.qwenimage21.spec import TaskKind, spec_of
from models.text.qwen3_vl import Qwen3VLConfig, Qwen3VLEncoder, renames_of
from models.vae import frame

STATES = (-1,)
"""Hidden states of the text encoder that are used as captions."""


def read_as(
    folder: Path, reading: Reading, kind: TaskKind, pipeline: Callable[..., QwenImage21Pipeline]
) -> FamilyCheckpoint[ChatNetworks, QwenImage21Pipeline]:
    """Read the configs of a Qwen-Image 2.1 checkpoint of this kind.

    Args:
        pipeline: pipeline constructor, with the arguments that `chat_pipeline` passes.

    Raises: ValueError: an unsupported config.
    """
    config, text, vae, scheduler = parts.read_configs(
        folder, reading.scheduler, QwenImage21Config, Qwen3VLConfig, frame.FrameVaeConfig
    )
    features = ("transformer context_in_dim", config.context_in_dim)
    check_fit(
        ("transformer in_channels", config.in_channels, "vae z_dim", vae.z_dim),
        (*features, "text_encoder hidden_size", text.hidden_size),
        ("vae in_channels", vae.in_channels, "vae out_channels", vae.out_channels),
    )
    sigmas = read_model_index(folder).get("sample_sigmas") or ()
    names = renames_of(text, STATES)
    return FamilyCheckpoint(
        FAMILY,
        {
            "transformer": parts.transformer(
                folder, QwenImage21Transformer, config, RENAMES, NAMINGS
            ),
            "text_encoder": parts.chat_encoder(
                folder, Qwen3VLEncoder, (text, STATES), names, "qwen3vl_8b"
            ),
            "vae": Network(frame.FrameAutoencoder, (vae,), folder / "vae", frame.RENAMES),
        },
        ChatNetworks,
        spec_of(vae, kind, sigmas, min_steps=2 if scheduler.shift_terminal else 1),
        parts.chat_pipeline(
            pipeline,
            folder,
            reading,
            scheduler,
            ANALYZING,
            tokenizer="processor",
            sigmas=sigmas,
        ),
        vae.downsampling,
        flat_frame_encoder,
    )
