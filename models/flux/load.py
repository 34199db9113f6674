"""Loads a `FluxPipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import (
    read_config,
    read_model_index,
    read_reference_px,
    read_scheduler,
)
from models.flow import parts
from models.flow.load import FamilyCheckpoint, Network, load_checkpoint
from models.flow.spec import optimizations_of
from models.flux.config import FluxConfig
from models.flux.control_checkpoint import controls_of
from models.flux.family import FAMILY
from models.flux.key_mapping import CLIP_NAMINGS, NAMINGS, RENAMES
from models.flux.kinds import kind_of
from models.flux.network import FluxTransformer
from models.flux.pipeline import FluxNetworks, FluxPipeline
from models.flux.redux_checkpoint import ReduxCheckpoint
from models.flux.spec import spec_of
from models.loading.preview import flat_image_encoder
from models.loading.sources import Reading
from models.sampling.flow_choice import checkpoint_scheduler
from models.text import clip, t5
from models.vae.config import VaeConfig


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[FluxNetworks, FluxPipeline]:
    """Read the configs of a Flux checkpoint. Raises: ValueError: an unsupported config."""
    config = FluxConfig.from_dict(read_config(folder, "transformer"))
    vae = VaeConfig.from_dict(read_config(folder, "vae"))
    clip_config = clip.ClipConfig.from_dict(read_config(folder, "text_encoder"))
    t5_config = t5.T5Config.from_dict(read_config(folder, "text_encoder_2"))
    joint = ("transformer joint_attention_dim", config.joint_attention_dim)
    pooled = ("transformer pooled_projection_dim", config.pooled_projection_dim)
    latents = ("transformer out_channels / 4", config.latent_channels)
    check_fit(
        (*latents, "vae latent_channels", vae.latent_channels),
        (*joint, "text_encoder_2 d_model", t5_config.d_model),
        (*pooled, "text_encoder hidden_size", clip_config.hidden_size),
    )
    class_name = reading.pipeline or read_model_index(folder)["_class_name"]
    kind = kind_of(class_name, config, vae, read_reference_px(folder))
    scheduler = checkpoint_scheduler(read_scheduler(folder), reading.scheduler)
    controls = controls_of(reading, config, kind)
    redux = ReduxCheckpoint.read(reading.image_prompts, config.joint_attention_dim)
    networks = {
        "transformer": Network(
            FluxTransformer, (config,), folder / "transformer", RENAMES, in_files=NAMINGS
        ),
        "clip": Network(
            clip.ClipTextModel,
            (clip_config,),
            folder / "text_encoder",
            clip.RENAMES,
            by_size=True,
            in_files=CLIP_NAMINGS,
        ),
        "t5": parts.t5_encoder(folder / "text_encoder_2", t5_config),
        "vae": parts.image_autoencoder(folder, vae),
    }
    image_prompts = redux.image_prompts if redux else {}
    return FamilyCheckpoint(
        FAMILY,
        {**networks, **redux.networks} if redux else networks,
        FluxNetworks,
        spec_of(
            config,
            vae,
            scheduler,
            kind,
            image_prompts,
            [files.config for files in controls.networks],
        ),
        lambda spec, networks: FluxPipeline(
            spec,
            networks,
            scheduler,
            reading.reader.clip_tokenizer(folder / "tokenizer"),
            reading.reader.t5_tokenizer(folder / "tokenizer_2"),
            reading.vae_tiling,
            kind,
            redux.preprocessor if redux else None,
            controls.slots,
        ),
        vae.downsampling,
        flat_image_encoder,
        optimizations_of(config.num_layers),
        redux.files if redux else (),
        controls,
    )


load = partial(load_checkpoint, read)
