"""Loads a `Krea2Pipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_model_index
from models.checkpoint.single_file import VAE_PREFIXES, Naming
from models.flow import parts
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, load_checkpoint
from models.krea2.config import Krea2Config
from models.krea2.family import FAMILY
from models.krea2.key_mapping import NAMINGS, RENAMES
from models.krea2.network import Krea2Transformer
from models.krea2.pipeline import CHAT, Krea2Pipeline
from models.krea2.spec import spec_of
from models.loading.preview import flat_frame_encoder
from models.loading.sources import Reading
from models.text.qwen3 import Qwen3Encoder
from models.text.qwen3_vl import Qwen3VLConfig, renames_of
from models.vae import video_key_mapping
from models.vae.patches import PATCH
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.vae.video_original_keys import AUTHORS_MARK, original_renames

STATES = (2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35)
"""Hidden states of the text encoder, unless the checkpoint names others."""
DISTILLED_SHIFT = 1.15
"""Exponent of the time shift of distilled checkpoints, at any size."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, Krea2Pipeline]:
    """Read the configs of a Krea 2 checkpoint. Raises: ValueError: an unsupported config."""
    config, text, vae, scheduler = parts.read_configs(
        folder, reading.scheduler, Krea2Config, Qwen3VLConfig, VideoVaeConfig
    )
    index = read_model_index(folder)
    states = tuple(index.get("text_encoder_select_layers") or STATES)
    if index.get("patch_size", PATCH) != PATCH:
        raise ValueError(f"patch_size {index['patch_size']} in model_index.json must be {PATCH}")
    channels = ("transformer in_channels", config.in_channels)
    width = ("transformer text_hidden_dim", config.text_hidden_dim)
    count = ("transformer num_text_layers", config.num_text_layers)
    check_fit(
        (*channels, f"{PATCH**2} times vae z_dim", PATCH**2 * vae.z_dim),
        (*width, "text_encoder hidden_size", text.hidden_size),
        (*count, "the number of text_encoder_select_layers", len(states)),
        ("vae input_channels", vae.in_channels, "an image's colours", len("RGB")),
    )
    is_distilled = bool(index.get("is_distilled"))
    if is_distilled:
        scheduler = replace(scheduler, base_shift=DISTILLED_SHIFT, max_shift=DISTILLED_SHIFT)
    in_file = Naming(VAE_PREFIXES, AUTHORS_MARK, original_renames(vae))
    names = renames_of(text, states, normed=True)
    return FamilyCheckpoint(
        FAMILY,
        {
            "transformer": parts.transformer(folder, Krea2Transformer, config, RENAMES, NAMINGS),
            "text_encoder": parts.chat_encoder(
                folder, Qwen3Encoder, (text, states), names, "qwen3vl_4b"
            ),
            "vae": parts.autoencoder(
                folder, VideoAutoencoder, vae, video_key_mapping.RENAMES, in_file
            ),
        },
        ChatNetworks,
        spec_of(vae, is_distilled),
        parts.chat_pipeline(Krea2Pipeline, folder, reading, scheduler, CHAT),
        vae.downsampling,
        flat_frame_encoder,
    )


load = partial(load_checkpoint, read)
