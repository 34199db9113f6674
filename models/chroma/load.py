"""Loads a `ChromaPipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.chroma.config import ChromaConfig
from models.chroma.family import FAMILY
from models.chroma.key_mapping import NAMINGS, RENAMES
from models.chroma.network import ChromaTransformer
from models.chroma.pipeline import ChromaPipeline
from models.chroma.spec import spec_of
from models.flow import parts
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, load_checkpoint
from models.flow.spec import optimizations_of
from models.loading.preview import flat_image_encoder
from models.loading.sources import Reading
from models.text.t5 import T5Config
from models.vae.config import VaeConfig
from models.vae.patches import PATCH


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, ChromaPipeline]:
    """Read the configs of a Chroma checkpoint. Raises: ValueError: an unsupported config."""
    config, text, vae, scheduler = parts.read_configs(
        folder, reading.scheduler, ChromaConfig, T5Config, VaeConfig
    )
    channels = ("transformer in_channels", config.in_channels)
    width = ("transformer joint_attention_dim", config.joint_attention_dim)
    check_fit(
        (*channels, f"{PATCH**2} times vae latent_channels", PATCH**2 * vae.latent_channels),
        (*width, "text_encoder d_model", text.d_model),
    )
    return FamilyCheckpoint(
        FAMILY,
        {
            "transformer": parts.transformer(folder, ChromaTransformer, config, RENAMES, NAMINGS),
            "text_encoder": parts.t5_encoder(folder / "text_encoder", text),
            "vae": parts.image_autoencoder(folder, vae),
        },
        ChatNetworks,
        spec_of(vae),
        lambda spec, networks: ChromaPipeline(
            spec,
            networks,
            scheduler,
            reading.reader.t5_tokenizer(folder / "tokenizer"),
            reading.vae_tiling,
        ),
        vae.downsampling,
        flat_image_encoder,
        optimizations_of(config.num_layers),
    )


load = partial(load_checkpoint, read)
