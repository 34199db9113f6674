"""Loads a `ZImagePipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint
from models.flow.load import load as load_checkpoint
from models.flow.parts import chat_pipeline, image_autoencoder, qwen3_encoder, transformer
from models.loading.preview import flat_image_encoder
from models.loading.sources import Reading
from models.sampling.flow_match import FlowMatchEuler
from models.text.chat import THINKING
from models.text.qwen3 import Qwen3Config
from models.vae.config import VaeConfig
from models.zimage.config import ZImageConfig
from models.zimage.key_mapping import NAMINGS, RENAMES
from models.zimage.network import ZImageTransformer
from models.zimage.pipeline import ZImagePipeline
from models.zimage.spec import spec_of

STATES = (-2,)
"""Hidden states of the text encoder that are used as captions."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, ZImagePipeline]:
    """Read the configs of a Z-Image checkpoint. Raises: ValueError: an unsupported config."""
    config = ZImageConfig.from_dict(read_config(folder, "transformer"))
    vae = VaeConfig.from_dict(read_config(folder, "vae"))
    text = Qwen3Config.from_dict(read_config(folder, "text_encoder"))
    features = ("transformer cap_feat_dim", config.cap_feat_dim)
    check_fit(
        ("transformer in_channels", config.in_channels, "vae latent_channels", vae.latent_channels),
        (*features, "text_encoder hidden_size", text.hidden_size),
    )
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    return FamilyCheckpoint(
        {
            "transformer": transformer(folder, ZImageTransformer, config, RENAMES, NAMINGS),
            "text_encoder": qwen3_encoder(folder, text, STATES, "qwen3_4b"),
            "vae": image_autoencoder(folder, vae),
        },
        ChatNetworks,
        "Z-Image",
        "layers and noise_refiner",
        spec_of(config, vae, scheduler),
        chat_pipeline(ZImagePipeline, folder, reading, scheduler, THINKING),
        vae.downsampling,
        flat_image_encoder,
    )


load = partial(load_checkpoint, read)
