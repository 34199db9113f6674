"""A checkpoint folder in diffusers' layout → a `ZImagePipeline`, every size from its configs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, Network
from models.flow.load import load as load_checkpoint
from models.loading.preview import flat_image_encoder
from models.loading.sources import Reading
from models.sampling.flow_match import FlowMatchEuler
from models.text.chat import THINKING
from models.text.qwen3 import Qwen3Config, Qwen3Encoder, renames_of
from models.vae import key_mapping as vae_weights
from models.vae.config import VaeConfig
from models.vae.image import AutoencoderKL
from models.zimage.config import ZImageConfig
from models.zimage.key_mapping import RENAMES
from models.zimage.network import ZImageTransformer
from models.zimage.pipeline import ZImagePipeline
from models.zimage.single_file import format_of
from models.zimage.spec import make_spec

STATES = (-2,)
"""Hidden states of the text encoder that captions are."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, ZImagePipeline]:
    """Read the configs. Raises: ValueError: one that these networks cannot have."""
    config = ZImageConfig.from_dict(read_config(folder, "transformer"))
    vae = VaeConfig.from_dict(read_config(folder, "vae"))
    text = Qwen3Config.from_dict(read_config(folder, "text_encoder"))
    channels = ("transformer in_channels", config.in_channels)
    features = ("transformer cap_feat_dim", config.cap_feat_dim)
    check_fit(
        (*channels, "vae latent_channels", vae.latent_channels),
        (*features, "text_encoder hidden_size", text.hidden_size),
    )
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    place, names = folder / "text_encoder", renames_of(text, STATES)
    return FamilyCheckpoint(
        {
            "transformer": Network(ZImageTransformer, (config,), folder / "transformer", RENAMES),
            "text_encoder": Network(Qwen3Encoder, (text, STATES), place, names, by_size=True),
            "vae": Network(AutoencoderKL, (vae,), folder / "vae", vae_weights.RENAMES),
        },
        ChatNetworks,
        format_of(vae, names),
        partial(make_spec, config, vae, scheduler),
        lambda spec, networks: ZImagePipeline(
            spec,
            networks,
            scheduler,
            reading.reader.qwen_tokenizer(folder / "tokenizer", THINKING),
            reading.vae_tiling,
        ),
        vae.downsampling,
        flat_image_encoder,
    )


load = partial(load_checkpoint, read)
