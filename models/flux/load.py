"""A checkpoint folder in diffusers' layout → a `FluxPipeline`, every size from its configs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from models.checkpoint.config_fields import check_fit
from models.checkpoint.folder import read_config, read_model_index
from models.checkpoint.safetensors import ComponentFiles
from models.flux import single_file
from models.flux.config import FluxConfig
from models.flux.key_mapping import RENAMES
from models.flux.network import FluxTransformer
from models.flux.pipeline import FluxNetworks, FluxPipeline
from models.flux.redux import ReduxImageEncoder
from models.flux.redux_checkpoint import ReduxCheckpoint
from models.flux.spec import levers_of, make_spec
from models.flux.tools import tool_of
from models.interface.apply_presets import with_presets
from models.loading.abstract import abstract_module
from models.loading.preview import abstract_preview, flat_image_encoder
from models.loading.sources import AS_IT_IS, Reading
from models.parallel.by_size import placed_by_size
from models.sampling.flow_match import FlowMatchEuler
from models.spec.image_prompts import ImagePrompt
from models.text import clip, t5
from models.vae import key_mapping as vae_weights
from models.vae.config import VaeConfig, check_tiling
from models.vae.image import AutoencoderKL
from models.vision.siglip import SiglipVisionModel
from models.weights import loader

COMPONENTS: Mapping[str, tuple[str, loader.Renames]] = {
    "transformer": ("transformer", RENAMES),
    "clip": ("text_encoder", clip.RENAMES),
    "t5": ("text_encoder_2", t5.RENAMES),
    "vae": ("vae", vae_weights.RENAMES),
}
"""Network → its folder in the checkpoint, and its names there."""


def load(
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    reading: Reading = AS_IT_IS,
) -> FluxPipeline:
    """Read configs, tokenizers and weights; the weights go straight to the device in `dtype`.

    Args:
        defaults: of request fields, by the operator; they go before the checkpoint's own.
        file: holds the transformer's weights, and those of other networks that are then not read
            from the folder.
        reading: where the arrays go, and what the networks compute in.

    Raises:
        ValueError: a config that these networks cannot have, with the file and the key; or tiles
            that are not whole latents.
        CheckpointError: files that are missing or damaged; arrays that are missing, stray or
            misshapen, all of them at once.
    """
    config = FluxConfig.from_dict(read_config(folder, "transformer"))
    vae_config = VaeConfig.from_dict(read_config(folder, "vae"))
    check_tiling(reading.vae_tiling, vae_config.downsampling)
    clip_config = clip.ClipConfig.from_dict(read_config(folder, "text_encoder"))
    t5_config = t5.T5Config.from_dict(read_config(folder, "text_encoder_2"))
    _check_fit(config, vae_config, clip_config, t5_config)
    tool = tool_of(read_model_index(folder)["_class_name"], config, vae_config)
    scheduler = FlowMatchEuler.from_dict(read_config(folder, "scheduler"))
    redux = ReduxCheckpoint.read(reading.image_prompts, config.joint_attention_dim)
    configs = (config, vae_config, clip_config, t5_config)
    loaded = reading.networks(
        lambda each: abstract_modules(*configs, each, redux),
        dtype,
        _places(folder, file, vae_config, redux),
        "transformer",
    )
    networks = FluxNetworks(
        **loaded, preview=reading.reader.preview(*flat_image_encoder(loaded["vae"]))
    )
    sources = (folder, *(() if file is None else (file,)), *(redux.files if redux else ()))
    image_prompts = (
        {redux.name: ImagePrompt(tokens=redux.siglip.tokens, summed=True)} if redux else {}
    )
    spec = make_spec(
        name, sources, config, vae_config, scheduler, defaults or {}, tool, image_prompts
    )
    return FluxPipeline(
        with_presets(spec, folder, levers_of(config), reading.qualities, reading.eight_bit),
        networks,
        scheduler,
        reading.reader.clip_tokenizer(folder / "tokenizer"),
        reading.reader.t5_tokenizer(folder / "tokenizer_2"),
        reading.vae_tiling,
        tool,
        redux.preprocessor if redux else None,
    )


def _places(
    folder: Path, file: Path | None, vae: VaeConfig, redux: ReduxCheckpoint | None
) -> Mapping[str, tuple[Path | ComponentFiles, loader.Renames]]:
    """Return where each network's arrays lie. Raises: CheckpointError: not a file of Flux's."""
    own: dict[str, tuple[Path | ComponentFiles, loader.Renames]]
    own = {name: (folder / component, names) for name, (component, names) in COMPONENTS.items()}
    own |= redux.places if redux else {}
    return {**own, **({} if file is None else single_file.parts(file, vae))}


def abstract_modules(
    config: FluxConfig,
    vae: VaeConfig,
    clip_config: clip.ClipConfig,
    t5_config: t5.T5Config,
    dtype: DTypeLike,
    redux: ReduxCheckpoint | None = None,
) -> FluxNetworks:
    """The networks as shapes alone: what the loader fills, and what a planner compiles."""
    shapes = partial(abstract_module, param_dtype=dtype)
    networks = FluxNetworks(
        transformer=shapes(FluxTransformer, config),
        clip=placed_by_size(shapes(clip.ClipTextModel, clip_config)),
        t5=placed_by_size(shapes(t5.T5Encoder, t5_config)),
        vae=shapes(AutoencoderKL, vae),
        preview=abstract_preview(vae.latent_channels),
    )
    if redux is None:
        return networks
    return networks._replace(
        image_encoder=placed_by_size(shapes(SiglipVisionModel, redux.siglip)),
        image_embedder=placed_by_size(shapes(ReduxImageEncoder, redux.config)),
    )


def _check_fit(
    config: FluxConfig, vae: VaeConfig, clip_config: clip.ClipConfig, t5_config: t5.T5Config
) -> None:
    """The parts of one checkpoint must fit each other."""
    check_fit(
        (
            "transformer out_channels / 4",
            config.latent_channels,
            "vae latent_channels",
            vae.latent_channels,
        ),
        (
            "transformer joint_attention_dim",
            config.joint_attention_dim,
            "text_encoder_2 d_model",
            t5_config.d_model,
        ),
        (
            "transformer pooled_projection_dim",
            config.pooled_projection_dim,
            "text_encoder hidden_size",
            clip_config.hidden_size,
        ),
    )
