"""Loads a `QwenImagePipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from models.checkpoint.config_fields import check_fit
from models.checkpoint.single_file import VAE_PREFIXES, Naming
from models.flow import parts
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, load_checkpoint
from models.loading.preview import flat_frame_encoder
from models.loading.sources import Reading
from models.qwenimage.config import QwenImageConfig
from models.qwenimage.control_checkpoint import controls_of
from models.qwenimage.family import FAMILY
from models.qwenimage.key_mapping import RENAMES, namings_of
from models.qwenimage.network import QwenImageTransformer
from models.qwenimage.pipeline import QwenImagePipeline
from models.qwenimage.spec import GENERATION, Kind, spec_of
from models.text.chat import DESCRIBING, Chat
from models.text.qwen25 import Qwen25Config, Qwen25Encoder, renames_of
from models.vae import video_key_mapping
from models.vae.video import VideoAutoencoder
from models.vae.video_config import VideoVaeConfig
from models.vae.video_original_keys import AUTHORS_MARK, original_renames

STATES = (-1,)
"""Hidden states of the text encoder that are used as captions."""
COLOURS = 3
ENCODER = "qwen25_7b"
"""Name of the text encoder in single files."""


def read_as(
    folder: Path,
    reading: Reading,
    kind: Kind,
    pipeline: Callable[..., QwenImagePipeline],
    chat: Chat,
) -> FamilyCheckpoint[ChatNetworks, QwenImagePipeline]:
    """Read the configs of a Qwen-Image checkpoint of this kind.

    Args:
        pipeline: pipeline constructor, with the arguments that `chat_pipeline` passes.
        chat: chat template of the prompts.

    Raises: CheckpointError, ValueError: an unsupported config or ControlNet.
    """
    config, text, vae, scheduler = parts.read_configs(
        folder, reading.scheduler, QwenImageConfig, Qwen25Config, VideoVaeConfig
    )
    _check_fit(config, vae, text)
    controls = controls_of(reading, config, kind)
    slots: dict[str, Any] = {"controls": controls.slots} if controls.networks else {}
    names = renames_of(text, STATES)
    in_file = Naming(VAE_PREFIXES, AUTHORS_MARK, original_renames(vae))
    in_files = namings_of(config.zero_cond_t)
    return FamilyCheckpoint(
        FAMILY,
        {
            "transformer": parts.transformer(
                folder, QwenImageTransformer, config, RENAMES, in_files
            ),
            "text_encoder": parts.chat_encoder(
                folder, Qwen25Encoder, (text, STATES), names, ENCODER
            ),
            "vae": parts.autoencoder(
                folder, VideoAutoencoder, vae, video_key_mapping.RENAMES, in_file
            ),
        },
        ChatNetworks,
        spec_of(vae, kind, min_steps=2 if scheduler.shift_terminal else 1),
        parts.chat_pipeline(pipeline, folder, reading, scheduler, chat, **slots),
        vae.downsampling,
        flat_frame_encoder,
        controls=controls,
    )


def _check_fit(config: QwenImageConfig, vae: VideoVaeConfig, text: Qwen25Config) -> None:
    """Check that the sizes of Qwen-Image's networks match."""
    check_fit(
        ("transformer out_channels", config.out_channels, "vae z_dim", vae.z_dim),
        (
            *("transformer joint_attention_dim", config.joint_attention_dim),
            *("text_encoder hidden_size", text.hidden_size),
        ),
        ("vae input_channels", vae.in_channels, "an image's colours", COLOURS),
        (
            *("vae temperal_downsample's length", len(vae.temperal_downsample)),
            *("that of dim_mult but one", vae.halvings),
        ),
    )


read = partial(read_as, kind=GENERATION, pipeline=QwenImagePipeline, chat=DESCRIBING)
load = partial(load_checkpoint, read)
