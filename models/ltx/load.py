"""A checkpoint folder in diffusers' layout → an `LTX2Pipeline`, every size from its configs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config
from models.checkpoint.safetensors import ComponentFiles
from models.interface.apply_presets import with_presets
from models.loading.abstract import abstract_module
from models.loading.preview import MeanLatents, abstract_preview
from models.loading.sources import AS_IT_IS, Reading
from models.ltx import single_file
from models.ltx.audio_vae import LTX2AudioDecoder
from models.ltx.audio_vae_config import COMPRESSION, LTX2AudioVaeConfig
from models.ltx.config import LTX2Config
from models.ltx.connectors import TextConnectors
from models.ltx.connectors_config import ConnectorsConfig
from models.ltx.key_mapping import (
    AUDIO_VAE,
    TRANSFORMER,
    VIDEO_VAE,
    connector_renames,
    vocoder_renames,
)
from models.ltx.latents import LatentGrid
from models.ltx.network import LTX2Transformer
from models.ltx.pipeline import LTX2Networks, LTX2Pipeline
from models.ltx.spec import make_spec
from models.ltx.video_vae import LTX2VideoAutoencoder
from models.ltx.video_vae_config import LTX2VideoVaeConfig
from models.ltx.vocoder import vocoder_of
from models.ltx.vocoder_config import (
    ExtendedVocoderConfig,
    VocoderConfig,
    read_vocoder_config,
)
from models.parallel.by_size import placed_by_size
from models.sampling.flow_match import FlowMatchEuler
from models.spec.quality_presets import LEVERS
from models.text.gemma3 import Gemma3Config, Gemma3Encoder, renames_of
from models.vae.config import check_tiling
from models.weights import loader

GEMMA = "gemma3"
"""Kind of the text encoder; LTX-2.5 has another one."""


class Configs(NamedTuple):
    """Configs of all networks of a checkpoint."""

    transformer: LTX2Config
    text_encoder: Gemma3Config
    connectors: ConnectorsConfig
    vae: LTX2VideoVaeConfig
    audio_vae: LTX2AudioVaeConfig
    vocoder: VocoderConfig | ExtendedVocoderConfig

    @classmethod
    def read(cls, folder: Path) -> Configs:
        """Read a folder's.

        Raises: ValueError: a config that these networks cannot have, or parts that do not fit.
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
        configs = cls(**{name: of(files[name]) for name, of in kinds.items()})
        configs.check()
        return configs

    def check(self) -> None:
        """Raises: ValueError: the parts of one checkpoint do not fit each other."""
        network, text, sound = self.transformer, self.connectors, self.audio_vae
        own = {
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
                for n, size in own.items()
            ),
            *(
                ("transformer vae_scale_factors", factor, "vae", size)
                for factor, size in zip(
                    network.vae_scale_factors, self.vae.downsampling, strict=True
                )
            ),
            *(
                ("transformer text", width, "connectors", found)
                for width, found in zip(contexts, text.widths, strict=True)
            ),
            ("connectors caption_channels", text.caption_channels, "text", states.hidden_size),
            (
                *("connectors text_proj_in_factor", text.text_proj_in_factor),
                *("hidden states of the text_encoder", states.num_hidden_layers + 1),
            ),
            ("vocoder in_channels", self.vocoder.in_channels, "audio_vae's mel bins", bins),
        )


def load(
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    reading: Reading = AS_IT_IS,
) -> LTX2Pipeline:
    """Read configs, tokenizer and weights; the weights go straight to the device in `dtype`.

    Args:
        defaults: of request fields, by the operator; they go before the checkpoint's own.
        file: holds the weights of networks that are then not read from the folder.
        reading: where the arrays go, and what the networks compute in.

    Raises:
        ValueError: a config that these networks cannot have, with the file and the key; or tiles
            that are not whole latents.
        CheckpointError: files that are missing or damaged; arrays that are missing, stray or
            misshapen, all of them at once.
    """
    configs = Configs.read(folder)
    check_tiling(reading.vae_tiling, math.lcm(*configs.vae.downsampling[1:]))
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    loaded = reading.networks(
        partial(abstract_modules, configs), dtype, _places(folder, file, configs), "transformer"
    )
    preview = reading.reader.preview(_flat_colours(loaded["vae"]), configs.vae.latent_channels)
    spec = make_spec(
        name,
        (folder,) if file is None else (folder, file),
        configs.transformer,
        configs.vae,
        defaults or {},
        text_multiple=configs.connectors.multiple,
        min_steps=2 if scheduler.shift_terminal else 1,
        sound_hz=configs.vocoder.output_sampling_rate,
    )
    levers = LEVERS - {"step_cache"}
    return LTX2Pipeline(
        with_presets(spec, folder, levers, reading.qualities, reading.eight_bit),
        LTX2Networks(**loaded, preview=preview),
        LatentGrid(configs.vae, configs.audio_vae),
        scheduler,
        reading.reader.gemma_tokenizer(folder / "tokenizer"),
        reading.vae_tiling,
    )


def _places(
    folder: Path, file: Path | None, configs: Configs
) -> Mapping[str, tuple[Path | ComponentFiles, loader.Renames]]:
    """Return where each network's arrays lie. Raises: CheckpointError: not a file of LTX-2's."""
    names = {
        "transformer": TRANSFORMER,
        "text_encoder": renames_of(configs.text_encoder),
        "connectors": connector_renames(configs.connectors.per_modality_projections),
        "vae": VIDEO_VAE,
        "audio_vae": AUDIO_VAE,
        "vocoder": vocoder_renames(configs.vocoder),
    }
    own = {name: (folder / name, renames) for name, renames in names.items()}
    return own if file is None else {**own, **single_file.parts(file)}


def abstract_modules(configs: Configs, dtype: DTypeLike) -> LTX2Networks:
    """The networks as shapes alone: what the loader fills, and what a planner compiles."""
    shapes = partial(abstract_module, param_dtype=dtype)
    return LTX2Networks(
        transformer=shapes(LTX2Transformer, configs.transformer),
        text_encoder=placed_by_size(shapes(Gemma3Encoder, configs.text_encoder)),
        connectors=placed_by_size(shapes(TextConnectors, configs.connectors)),
        vae=shapes(LTX2VideoAutoencoder, configs.vae),
        audio_vae=shapes(LTX2AudioDecoder, configs.audio_vae),
        vocoder=shapes(vocoder_of, configs.vocoder),
        preview=abstract_preview(configs.vae.latent_channels),
    )


def _flat_colours(vae: LTX2VideoAutoencoder) -> MeanLatents:
    """Return what a preview is fitted to: mean latents of one frame of a colour."""
    side = 4 * max(vae.config.downsampling)
    graph, state = nnx.split(vae)

    @jax.jit
    def mean_latents(state: Any, colour: Float[Array, " 3"]) -> Float[Array, " c"]:
        vae = nnx.merge(graph, state)
        dtype = vae.encoder_in.conv.kernel.dtype
        frame = jnp.broadcast_to(colour.astype(dtype), (1, 1, side, side, 3))
        return vae.normalised(vae.encode(frame)).mean(axis=(0, 1, 2, 3))

    return partial(mean_latents, state)
