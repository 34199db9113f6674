"""Loads a `Flux2Pipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_model_index, weight_files
from models.checkpoint.single_file import VAE_PREFIXES, Naming
from models.flow import parts
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, Network, load_checkpoint
from models.flow.spec import optimizations_of
from models.flux2.config import Flux2Config
from models.flux2.family import DEV, FAMILY
from models.flux2.key_mapping import NAMINGS, RENAMES
from models.flux2.network import Flux2Transformer
from models.flux2.pipeline import Flux2DevPipeline, Flux2Pipeline
from models.flux2.spec import BASE, DISTILLED, spec_of
from models.flux2.spec import DEV as OF_DEV
from models.loading.preview import flat_image_encoder
from models.loading.sources import Reading
from models.text.chat import NOT_THINKING, Chat, instruction
from models.text.mistral import MistralConfig
from models.text.qwen3 import Qwen3Config
from models.vae import batch_normed
from models.vae.batch_normed import BatchNormedAutoencoder, BatchNormedVaeConfig
from models.vae.original_keys import ORIGINAL_MARK

SYSTEM_MESSAGE = (
    "You are an AI that reasons about image descriptions. You give structured responses focusing "
    "on object relationships, object\nattribution and actions without speculation."
)
"""Message before each prompt of dev. Source: diffusers' pipelines/flux2/system_messages.py."""


class TextEncoder(NamedTuple):
    """Text encoder of a pipeline class, and the pipeline that reads its features."""

    config: type[Qwen3Config]
    states: tuple[int, ...]
    """Hidden states that are concatenated as the transformer's input."""
    network: Callable[..., Network]
    files: tuple[str, ...]
    """Names of the encoder in single files."""
    chat: Chat
    pipeline: Callable[..., Any]


QWEN3 = TextEncoder(
    Qwen3Config,
    (9, 18, 27),
    parts.qwen3_encoder,
    ("qwen3_4b", "qwen3_8b"),
    NOT_THINKING,
    Flux2Pipeline,
)
MISTRAL = TextEncoder(
    MistralConfig,
    (10, 20, 30),
    parts.mistral_encoder,
    ("mistral3_24b",),
    instruction(SYSTEM_MESSAGE),
    Flux2DevPipeline,
)


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, Flux2Pipeline]:
    """Read the configs of a FLUX.2 checkpoint. Raises: ValueError: an unsupported config."""
    index = read_model_index(folder)
    is_dev = index["_class_name"] == DEV
    encoder = MISTRAL if is_dev else QWEN3
    config, text, vae, scheduler = parts.read_configs(
        folder, reading.scheduler, Flux2Config, encoder.config, BatchNormedVaeConfig
    )
    if "vae" in reading.parts:
        vae = batch_normed.with_decoder_of(vae, weight_files(folder / "vae"))
    if config.guidance_embeds != is_dev:
        raise ValueError(f"guidance_embeds must be {str(is_dev).lower()} in this pipeline")
    states = len(encoder.states) * text.hidden_size
    check_fit(
        ("transformer in_channels", config.in_channels, "vae latents", vae.packed_channels),
        ("transformer joint_attention_dim", config.joint_attention_dim, "text_encoder", states),
    )
    of_klein = DISTILLED if index.get("is_distilled", False) else BASE
    in_file = Naming(VAE_PREFIXES, ORIGINAL_MARK, batch_normed.authors_renames(vae))
    return FamilyCheckpoint(
        FAMILY,
        {
            "transformer": parts.transformer(folder, Flux2Transformer, config, RENAMES, NAMINGS),
            "text_encoder": encoder.network(folder, text, encoder.states, *encoder.files),
            "vae": parts.autoencoder(
                folder, BatchNormedAutoencoder, vae, batch_normed.RENAMES, in_file
            ),
        },
        ChatNetworks,
        spec_of(vae, OF_DEV if is_dev else of_klein),
        parts.chat_pipeline(encoder.pipeline, folder, reading, scheduler, encoder.chat),
        vae.downsampling,
        flat_image_encoder,
        optimizations_of(config.num_layers),
    )


load = partial(load_checkpoint, read)
