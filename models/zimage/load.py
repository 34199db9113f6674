"""Loads a `ZImagePipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from models.checkpoint.config_fields import check_fit
from models.flow import parts
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, load_checkpoint
from models.loading.preview import flat_image_encoder
from models.loading.sources import Reading
from models.text.chat import THINKING
from models.text.qwen3 import Qwen3Config
from models.vae.config import VaeConfig
from models.zimage.config import ZImageConfig
from models.zimage.control_checkpoint import controls_of
from models.zimage.family import FAMILY
from models.zimage.key_mapping import NAMINGS, RENAMES
from models.zimage.network import ZImageTransformer
from models.zimage.pipeline import ZImagePipeline
from models.zimage.spec import spec_of

STATES = (-2,)
"""Hidden states of the text encoder that are used as captions."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, ZImagePipeline]:
    """Read the configs of a Z-Image checkpoint.

    Raises: CheckpointError, ValueError: an unsupported config or ControlNet.
    """
    config, text, vae, scheduler = parts.read_configs(
        folder, reading.scheduler, ZImageConfig, Qwen3Config, VaeConfig
    )
    features = ("transformer cap_feat_dim", config.cap_feat_dim)
    check_fit(
        ("transformer in_channels", config.in_channels, "vae latent_channels", vae.latent_channels),
        (*features, "text_encoder hidden_size", text.hidden_size),
    )
    controls = controls_of(reading, config)
    slots: dict[str, Any] = {"controls": controls.slots} if controls.networks else {}
    return FamilyCheckpoint(
        FAMILY,
        {
            "transformer": parts.transformer(folder, ZImageTransformer, config, RENAMES, NAMINGS),
            "text_encoder": parts.qwen3_encoder(folder, text, STATES, "qwen3_4b"),
            "vae": parts.image_autoencoder(folder, vae),
        },
        ChatNetworks,
        spec_of(config, vae, scheduler),
        parts.chat_pipeline(ZImagePipeline, folder, reading, scheduler, THINKING, **slots),
        vae.downsampling,
        flat_image_encoder,
        controls=controls,
    )


load = partial(load_checkpoint, read)
