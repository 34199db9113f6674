"""Loads an `LTX2Pipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config, read_scheduler
from models.flow.load import FamilyCheckpoint, Network, load_checkpoint
from models.loading.preview import MeanLatents
from models.loading.sources import Reading
from models.ltx.audio_vae import LTX2AudioDecoder
from models.ltx.audio_vae_config import COMPRESSION, LTX2AudioVaeConfig
from models.ltx.config import LTX2Config
from models.ltx.connectors import TextConnectors
from models.ltx.connectors_config import ConnectorsConfig
from models.ltx.family import FAMILY
from models.ltx.key_mapping import (
    AUDIO_VAE,
    NAMINGS,
    TRANSFORMER,
    VIDEO_VAE,
    connector_renames,
    vocoder_renames,
)
from models.ltx.latents import LatentGrid
from models.ltx.network import LTX2Transformer
from models.ltx.pipeline import LTX2Networks, LTX2Pipeline
from models.ltx.second_stage import NAME
from models.ltx.spec import make_spec
from models.ltx.upsampler_checkpoint import find_upsampler
from models.ltx.video_vae import LTX2VideoAutoencoder
from models.ltx.video_vae_config import LTX2VideoVaeConfig
from models.ltx.vocoder import vocoder_of
from models.ltx.vocoder_config import (
    ExtendedVocoderConfig,
    VocoderConfig,
    read_vocoder_config,
)
from models.sampling.flow_choice import checkpoint_scheduler
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import CACHES, OPTIMIZATIONS
from models.text.gemma3 import Gemma3Config, Gemma3Encoder, renames_of

GEMMA = "gemma3"
"""Supported type of the text encoder; LTX-2.5 has a different one."""


class Configs(NamedTuple):
    """Configs of all networks of an LTX-2 checkpoint."""

    transformer: LTX2Config
    text_encoder: Gemma3Config
    connectors: ConnectorsConfig
    vae: LTX2VideoVaeConfig
    audio_vae: LTX2AudioVaeConfig
    vocoder: VocoderConfig | ExtendedVocoderConfig

    @classmethod
    def read(cls, folder: Path) -> Configs:
        """Read the configs of an LTX-2 checkpoint folder.

        Raises: ValueError: an unsupported config, or configs that do not match.
        """
        kinds: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "transformer": LTX2Config.from_dict,
            "text_encoder": Gemma3Config.from_dict,
            "connectors": ConnectorsConfig.from_dict,
            "vae": LTX2VideoVaeConfig.from_dict,
            "audio_vae": LTX2AudioVaeConfig.from_dict,
            "vocoder": read_vocoder_config,
        }
        files = {name: read_config(folder, name) for name in kinds}
        kind = files["text_encoder"].get("model_type", GEMMA)
        if kind != GEMMA:
            raise ValueError(f"text_encoder/config.json: model_type must be {GEMMA}, not {kind!r}")
        configs = cls(**{name: parse(files[name]) for name, parse in kinds.items()})
        configs.check()
        return configs

    def check(self) -> None:
        """Check that the sizes of LTX-2's networks match. Raises: ValueError: two differ."""
        network, text, sound = self.transformer, self.connectors, self.audio_vae
        sizes = {
            "in_channels": self.vae.latent_channels,
            "audio_in_channels": sound.features,
            "audio_sampling_rate": sound.sample_rate,
            "audio_hop_length": sound.mel_hop_length,
            "audio_scale_factor": COMPRESSION,
        }
        contexts = (
            (network.caption_channels,) * 2
            if network.use_prompt_embeddings
            else (network.cross_attention_dim, network.audio_cross_attention_dim)
        )
        states, bins = self.text_encoder, sound.output_channels * sound.mel_bins
        check_fit(
            *(
                (f"transformer {n}", getattr(network, n), "latents", size)
                for n, size in sizes.items()
            ),
            *(
                ("transformer vae_scale_factors", factor, "vae", size)
                for factor, size in zip(
                    network.vae_scale_factors, self.vae.downsampling, strict=True
                )
            ),
            *(
                ("transformer text", width, "connectors", size_of_text)
                for width, size_of_text in zip(contexts, text.widths, strict=True)
            ),
            ("connectors caption_channels", text.caption_channels, "text", states.hidden_size),
            (
                *("connectors text_proj_in_factor", text.text_proj_in_factor),
                *("hidden states of the text_encoder", states.num_hidden_layers + 1),
            ),
            ("vocoder in_channels", self.vocoder.in_channels, "audio_vae's mel bins", bins),
        )


def read(folder: Path, reading: Reading) -> FamilyCheckpoint[LTX2Networks, LTX2Pipeline]:
    """Read the configs of an LTX-2 checkpoint. Raises: ValueError: an unsupported config."""
    configs = Configs.read(folder)
    upsampler = find_upsampler(folder, reading.latent_upsampler, configs.vae.latent_channels)
    scheduler = checkpoint_scheduler(read_scheduler(folder), None, names=())

    def pipeline(spec: ModelSpec, networks: LTX2Networks) -> LTX2Pipeline:
        grid = LatentGrid(configs.vae, configs.audio_vae)
        tokenizer = reading.reader.gemma_tokenizer(folder / "tokenizer")
        return LTX2Pipeline(spec, networks, grid, scheduler, tokenizer, reading.vae_tiling)

    extras = {} if upsampler is None else {NAME: upsampler.network}
    return FamilyCheckpoint(
        FAMILY,
        {**_networks(folder, configs), **extras},
        LTX2Networks,
        partial(
            make_spec,
            configs.transformer,
            configs.vae,
            text_multiple=configs.connectors.multiple,
            min_steps=2 if scheduler.shift_terminal else 1,
            sound_hz=configs.vocoder.output_sampling_rate,
            upsampler=None if upsampler is None else upsampler.config,
        ),
        pipeline,
        math.lcm(*configs.vae.downsampling[1:]),
        _flat_colours,
        OPTIMIZATIONS - CACHES,
        files=() if upsampler is None else upsampler.paths,
    )


load = partial(load_checkpoint, read)


def _networks(folder: Path, configs: Configs) -> Mapping[str, Network]:
    """Return the networks of a checkpoint folder, except for the latent upsampler."""
    states, sound = configs.text_encoder, configs.vocoder
    words = connector_renames(configs.connectors.per_modality_projections)
    at = {name: folder / name for name in Configs._fields}
    video, audio = at["vae"], at["audio_vae"]
    return {
        "transformer": Network(
            LTX2Transformer,
            (configs.transformer,),
            at["transformer"],
            TRANSFORMER,
            in_files=NAMINGS,
        ),
        "text_encoder": Network(
            Gemma3Encoder, (states,), at["text_encoder"], renames_of(states), by_size=True
        ),
        "connectors": Network(
            TextConnectors, (configs.connectors,), at["connectors"], words, by_size=True
        ),
        "vae": Network(LTX2VideoAutoencoder, (configs.vae,), video, VIDEO_VAE),
        "audio_vae": Network(LTX2AudioDecoder, (configs.audio_vae,), audio, AUDIO_VAE),
        "vocoder": Network(vocoder_of, (sound,), at["vocoder"], vocoder_renames(sound)),
    }


def _flat_colours(vae: LTX2VideoAutoencoder) -> tuple[MeanLatents, int]:
    """Return the inputs of `fit_preview`: mean latents of one flat frame, and their channels."""
    side = 4 * max(vae.config.downsampling)
    graph, state = nnx.split(vae)

    @jax.jit
    def mean_latents(state: Any, colour: Float[Array, " 3"]) -> Float[Array, " c"]:
        vae = nnx.merge(graph, state)
        dtype = vae.encoder_in.conv.kernel.dtype
        frame = jnp.broadcast_to(colour.astype(dtype), (1, 1, side, side, 3))
        return vae.normalised(vae.encode(frame)).mean(axis=(0, 1, 2, 3))

    return partial(mean_latents, state), vae.config.latent_channels
