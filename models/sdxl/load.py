"""Loads an `SdxlPipeline` from a checkpoint in diffusers' layout or in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.checkpoint.folder import (
    CheckpointError,
    default_scheduler,
    read_defaults,
    read_model_index,
)
from models.control.checkpoint import Controls, load_controls, read_controls, with_controls
from models.interface.apply_presets import with_presets
from models.loading.abstract import abstract_module
from models.loading.preview import MeanLatents, abstract_preview
from models.loading.sources import DEFAULT_READING, Reader, Reading
from models.parallel.encoder_axes import rename_axes_by_size
from models.sampling import registry
from models.sdxl.compatibility import (
    SCORE,
    TOKENIZERS,
    Parts,
    check_fit,
    check_index,
    has_both_encoders,
)
from models.sdxl.config import UNetConfig
from models.sdxl.control_checkpoint import read_files
from models.sdxl.image_prompts import IpAdapterFiles, load_adapters, read_adapters
from models.sdxl.latents import LatentSpace
from models.sdxl.network import UNet
from models.sdxl.pipeline import SdxlNetworks, SdxlPipeline
from models.sdxl.prepare import Preparation
from models.sdxl.refiner_checkpoint import (
    RefinerFiles,
    check_refiner,
    load_refiner,
    needs_with_refiner,
)
from models.sdxl.source import COMPONENTS, Source
from models.sdxl.spec import SDXL_OPTIMIZATIONS, make_spec
from models.spec.image_prompts import ImagePrompt
from models.spec.model_spec import ModelSpec
from models.text.clip import ClipConfig, ClipTextModel, ClipTextModelWithProjection
from models.vae.config import VaeConfig, check_tiling
from models.vae.image import AutoencoderKL


def load(
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    reading: Reading = DEFAULT_READING,
) -> SdxlPipeline:
    """Load configs, tokenizers and weights; weights go directly to the device in `dtype`.

    Args:
        defaults: operator defaults of request fields; override the checkpoint's.
        file: single file with all weights under their original names; replaces the folder's
            weights.
        reading: placement of the arrays, and the networks' computation dtype.

    Raises:
        ValueError: an unsupported config, with file and key; or tiles that are not whole latents.
        CheckpointError: missing or damaged files; missing, unexpected or misshapen arrays, all of
            them at once.
    """
    chosen = {**read_defaults(folder), **(defaults or {})}
    source = Source(folder, file, tuple(reading.parts), default_scheduler(folder, defaults))
    parts = read_parts(source)
    scheduler = source.scheduler()
    for config in (source.served(source.config("scheduler")), scheduler):
        registry.from_config(config)  # raises now instead of at the first request
    extras = read_extras(source, parts, reading)
    spec = make_spec(
        name,
        source.fingerprint(*extras.paths),
        parts,
        chosen,
        scheduler["_class_name"],
        force_zeros_for_empty_prompt=forced_zeros(source),
        image_prompts=extras.image_prompts,
        refiner=needs_with_refiner(extras.refiner),
        config_digest=source.config_digest(*extras.paths),
    )
    spec = with_controls(spec, extras.controls)
    spec = with_presets(spec, folder, SDXL_OPTIMIZATIONS, reading.qualities, reading.eight_bit)
    activation_dtype = reading.activation_dtype or dtype
    dtypes = jnp.dtype(dtype), jnp.dtype(activation_dtype)
    check_tiling(reading.vae_tiling, parts.vae.downsampling)
    space = LatentSpace(parts.vae, dtypes[1], reading.vae_tiling)
    base_preparation = read_preparation(source, parts, spec, space, reading.reader)
    preparation = with_extras(base_preparation, extras, reading.reader)
    loaded = load_checkpoint(source, parts, dtype, activation_dtype, reading)
    preview = reading.reader.preview(*colour_encoder(loaded["vae"], preparation.latent_space))
    networks = SdxlNetworks(
        **loaded,
        preview=preview,
        controls=load_controls(extras.controls, dtypes, reading),
        image_prompts=load_adapters(extras.adapters, parts.unet, reading, dtype, activation_dtype),
        **load_refiner(extras.refiner, abstract_modules, (dtype, activation_dtype), reading),
    )
    return SdxlPipeline(preparation, networks)


class ExtraNetworks(NamedTuple):
    """Additional networks of a model: ControlNets, IP-Adapters and a refiner."""

    controls: Controls
    adapters: Mapping[str, IpAdapterFiles]
    refiner: RefinerFiles | None
    trained: Mapping[str, Any]
    """Scheduler options in which the refiner's training differs."""

    @property
    def paths(self) -> list[Path]:
        """Paths of all additional networks, in the order used by fingerprints."""
        of_adapters = [place for adapter in self.adapters.values() for place in adapter.paths]
        of_refiner = () if self.refiner is None else self.refiner.paths
        return [*self.controls.paths, *of_adapters, *of_refiner]

    @property
    def image_prompts(self) -> dict[str, ImagePrompt]:
        """Image prompts by name, for the `ModelSpec`."""
        return {name: ImagePrompt(tokens=adapter.tokens) for name, adapter in self.adapters.items()}


def read_extras(source: Source, parts: Parts, reading: Reading) -> ExtraNetworks:
    """Read the configs of ControlNets, IP-Adapters and refiner. Raises: as `load` does."""
    read = partial(read_files, parts, source.config("unet"))
    controls = read_controls(reading, "unet", read)
    adapters = read_adapters(reading.image_prompts, parts.unet)
    refiner = read_refiner(reading, parts)
    trained = {} if refiner is None else refiner.trained(source.scheduler())
    return ExtraNetworks(controls, adapters, refiner, trained)


def with_extras(base: Preparation, extras: ExtraNetworks, reader: Reader) -> Preparation:
    """Return a checkpoint's preparation extended by that of the additional networks."""
    files, refiner = extras.refiner, None
    if files is not None:
        refiner = read_preparation(files.source, files.parts, base.spec, base.latent_space, reader)
    return replace(
        base,
        controls=extras.controls.slots,
        image_prompts={name: adapter.preprocessor for name, adapter in extras.adapters.items()},
        refiner=refiner,
        refiners_training=extras.trained,
    )


def load_checkpoint(
    source: Source,
    parts: Parts,
    dtype: DTypeLike,
    activation_dtype: DTypeLike,
    reading: Reading,
) -> dict[str, Any]:
    """Load the checkpoint's networks by name; None for a missing one. Raises: as `load` does."""
    stored, used = (
        reading.rounded(abstract_modules(parts, each), "unet") for each in (dtype, activation_dtype)
    )
    loaded = {
        name: reading.network(name, (getattr(stored, name), getattr(used, name)), place, renames)
        for name, (place, renames) in source.array_sources(parts).items()
    }
    return {**dict.fromkeys(COMPONENTS), **loaded}


def read_refiner(reading: Reading, base: Parts) -> RefinerFiles | None:
    """Read the configs of a model's refiner; None without one. Raises: as `load` does."""
    if reading.refiner is None:
        return None
    source = Source(*reading.refiner)
    try:
        parts = read_parts(source)
        check_refiner(parts, base)
    except (ValueError, CheckpointError) as error:
        raise CheckpointError(f"refiner: {source.file or source.folder}: {error}") from error
    return RefinerFiles(source, parts)


def read_parts(source: Source) -> Parts:
    """Read the configs of an SDXL checkpoint and check them. Raises: as `load` does."""
    index = read_model_index(source.folder)
    check_index(index)
    both = has_both_encoders(index)
    parts = Parts(
        unet=UNetConfig.from_dict(source.config("unet")),
        clip=ClipConfig.from_dict(source.config("text_encoder")) if both else None,
        clip_2=ClipConfig.from_dict(source.config("text_encoder_2")),
        vae=VaeConfig.from_dict(source.config("vae")),
        scored=bool(index.get(SCORE)),
    )
    check_fit(parts)
    return parts


def read_preparation(
    source: Source, parts: Parts, spec: ModelSpec, space: LatentSpace, reader: Reader
) -> Preparation:
    """Read a checkpoint's host-side data: tokenizers, scheduler, options. Raises: as `load`."""
    names = [*TOKENIZERS.values()][-len(parts.towers) :]
    return Preparation(
        spec=spec,
        unet=parts.unet,
        latent_space=space,
        towers=parts.towers,
        tokenizers=tuple(reader.clip_tokenizer(source.folder / name) for name in names),
        scheduler=source.scheduler(),
        force_zeros_for_empty_prompt=forced_zeros(source),
        scored=parts.scored,
    )


def forced_zeros(source: Source) -> bool:
    """Return whether the UNet gets zero embeddings if a request has no negative prompt."""
    return bool(read_model_index(source.folder).get("force_zeros_for_empty_prompt", True))


def abstract_modules(parts: Parts, dtype: DTypeLike) -> SdxlNetworks:
    """Build SDXL's networks with shapes only, for the loader to fill and planners to compile."""
    shapes = partial(abstract_module, param_dtype=dtype)
    return SdxlNetworks(
        unet=shapes(UNet, parts.unet),
        clip=parts.clip and rename_axes_by_size(shapes(ClipTextModel, parts.clip)),
        clip_2=rename_axes_by_size(shapes(ClipTextModelWithProjection, parts.clip_2)),
        vae=shapes(AutoencoderKL, parts.vae),
        preview=abstract_preview(parts.vae.latent_channels),
    )


def colour_encoder(vae: AutoencoderKL, space: LatentSpace) -> tuple[MeanLatents, int]:
    """Return the inputs of `fit_preview`: mean latents of a flat colour, scaled for the UNet."""
    config, side = space.config, 4 * space.config.downsampling
    mean_only = jnp.zeros((4, 4, config.latent_channels))
    graph, state = nnx.split(vae)

    @jax.jit
    def mean_latents(state: Any, colour: Float[Array, " 3"]) -> Float[Array, " c"]:
        flat = jnp.broadcast_to(colour, (side, side, 3))
        mean = space.encode(graph, state, flat, mean_only).mean(axis=(0, 1))
        return space.normalize(mean)

    return partial(mean_latents, state), config.latent_channels
