"""A checkpoint folder in diffusers' layout → a `Flux2Pipeline`, every size from its configs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config, read_model_index
from models.flow.chat_pipeline import ChatNetworks
from models.flow.load import FamilyCheckpoint, Network
from models.flow.load import load as load_checkpoint
from models.flux2.config import Flux2Config
from models.flux2.key_mapping import RENAMES
from models.flux2.network import Flux2Transformer
from models.flux2.pipeline import Flux2Pipeline
from models.flux2.single_file import format_of
from models.flux2.spec import make_spec
from models.loading.preview import flat_image_encoder
from models.loading.sources import Reading
from models.sampling.flow_match import FlowMatchEuler
from models.spec.quality_presets import LEVERS
from models.text.chat import NOT_THINKING
from models.text.qwen3 import Qwen3Config, Qwen3Encoder, renames_of
from models.vae import key_mapping as vae_weights
from models.vae.batch_normed import STATISTICS, BatchNormedAutoencoder, BatchNormedVaeConfig

STATES = (9, 18, 27)
"""Hidden states of the text encoder that the network reads, side by side."""


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[ChatNetworks, Flux2Pipeline]:
    """Read the configs. Raises: ValueError: one that these networks cannot have."""
    config = Flux2Config.from_dict(read_config(folder, "transformer"))
    vae = BatchNormedVaeConfig.from_dict(read_config(folder, "vae"))
    text = Qwen3Config.from_dict(read_config(folder, "text_encoder"))
    states = len(STATES) * text.hidden_size
    check_fit(
        ("transformer in_channels", config.in_channels, "vae latents", vae.packed_channels),
        ("transformer joint_attention_dim", config.joint_attention_dim, "text_encoder", states),
    )
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    is_distilled = bool(read_model_index(folder).get("is_distilled", False))
    place, names = folder / "text_encoder", renames_of(text, STATES)
    vae_names = (*STATISTICS, *vae_weights.RENAMES)
    return FamilyCheckpoint(
        {
            "transformer": Network(Flux2Transformer, (config,), folder / "transformer", RENAMES),
            "text_encoder": Network(Qwen3Encoder, (text, STATES), place, names, by_size=True),
            "vae": Network(BatchNormedAutoencoder, (vae,), folder / "vae", vae_names),
        },
        ChatNetworks,
        format_of(vae, names),
        partial(make_spec, vae, is_distilled=is_distilled),
        lambda spec, networks: Flux2Pipeline(
            spec,
            networks,
            scheduler,
            reading.reader.qwen_tokenizer(folder / "tokenizer", NOT_THINKING),
            reading.vae_tiling,
        ),
        vae.downsampling,
        flat_image_encoder,
        LEVERS if config.num_layers else LEVERS - {"step_cache"},
    )


load = partial(load_checkpoint, read)
