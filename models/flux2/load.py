"""Loads a `Flux2Pipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_model_index
from models.checkpoint.single_file import VAE_PREFIXES, Naming
from models.flow import parts
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, load_checkpoint
from models.flow.spec import optimizations_of
from models.flux2.config import Flux2Config
from models.flux2.family import FAMILY
from models.flux2.key_mapping import NAMINGS, RENAMES
from models.flux2.network import Flux2Transformer
from models.flux2.pipeline import Flux2Pipeline
from models.flux2.spec import spec_of
from models.loading.preview import flat_image_encoder
from models.loading.sources import Reading
from models.text.chat import NOT_THINKING
from models.text.qwen3 import Qwen3Config
from models.vae import batch_normed
from models.vae.batch_normed import BatchNormedAutoencoder, BatchNormedVaeConfig

STATES = (9, 18, 27)
"""Hidden states of the text encoder that are concatenated as the network's input."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, Flux2Pipeline]:
    """Read the configs of a FLUX.2 checkpoint. Raises: ValueError: an unsupported config."""
    config, text, vae, scheduler = parts.read_configs(
        folder, reading.scheduler, Flux2Config, Qwen3Config, BatchNormedVaeConfig
    )
    states = len(STATES) * text.hidden_size
    check_fit(
        ("transformer in_channels", config.in_channels, "vae latents", vae.packed_channels),
        ("transformer joint_attention_dim", config.joint_attention_dim, "text_encoder", states),
    )
    is_distilled = bool(read_model_index(folder).get("is_distilled", False))
    in_file = Naming(VAE_PREFIXES, "bn.running_mean", batch_normed.authors_renames(vae))
    return FamilyCheckpoint(
        FAMILY,
        {
            "transformer": parts.transformer(folder, Flux2Transformer, config, RENAMES, NAMINGS),
            "text_encoder": parts.qwen3_encoder(folder, text, STATES, "qwen3_4b", "qwen3_8b"),
            "vae": parts.autoencoder(
                folder, BatchNormedAutoencoder, vae, batch_normed.RENAMES, in_file
            ),
        },
        ChatNetworks,
        spec_of(vae, is_distilled=is_distilled),
        parts.chat_pipeline(Flux2Pipeline, folder, reading, scheduler, NOT_THINKING),
        vae.downsampling,
        flat_image_encoder,
        optimizations_of(config.num_layers),
    )


load = partial(load_checkpoint, read)
