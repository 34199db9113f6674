"""Loads a `WanPipeline` from a checkpoint folder in diffusers' layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import SingleDeviceSharding
from jax.typing import DTypeLike

from models.checkpoint.folder import default_scheduler, read_config, read_scheduler
from models.interface.apply_presets import with_presets
from models.interface.token_buckets import with_token_buckets
from models.loading.abstract import abstract_module
from models.loading.preview import abstract_preview, flat_frame_encoder
from models.loading.sources import DEFAULT_READING, Reading
from models.parallel.encoder_axes import rename_axes_by_size
from models.spec.quality_presets import OPTIMIZATIONS
from models.text import umt5
from models.vae.config import check_tiling
from models.vae.video import VideoAutoencoder
from models.vision import clip
from models.vision.preprocess import ClipPreprocessor
from models.wan.animate import AnimateTransformer
from models.wan.animate_pipeline import AnimatePipeline
from models.wan.array_sources import COMPONENTS, ArraySource, ArraySources, array_sources
from models.wan.checkpoint import WanCheckpoint
from models.wan.experts import must_swap
from models.wan.face_encoder import FaceEncoder
from models.wan.network import WanTransformer
from models.wan.pipeline import Tools, WanNetworks, WanPipeline
from models.wan.schedulers import checkpoint_config
from models.wan.spec import make_spec
from models.wan.vace import VaceTransformer
from models.wan.vace_pipeline import VacePipeline

EXPERTS = ("transformer", "transformer_2")


def load(
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    swap_experts: bool | None = None,
    file: Path | None = None,
    reading: Reading = DEFAULT_READING,
) -> WanPipeline:
    """Load configs, tokenizer and weights of a Wan checkpoint; weights go directly to the device.

    Transformer and text encoder have `dtype`, except for parameters that diffusers keeps in
    float32. VAE, image encoder and face encoder are float32.

    Args:
        defaults: operator defaults of request fields; override the checkpoint's.
        swap_experts: whether experts stay on the host, and the engine moves one at a time to the
            device; None: only if the device cannot hold both.
        file: single file with the transformer's weights, and for Animate the face encoder's;
            replaces those of the folder.
        reading: placement of the arrays, and the networks' computation dtype.

    Raises:
        ValueError: an unsupported config, with file and key; or tiles that are not whole latents.
        CheckpointError: missing or damaged files; missing, unexpected or misshapen arrays, all of
            them at once.
    """
    checkpoint = WanCheckpoint.read(folder)
    scheduler = _scheduler_config(folder, default_scheduler(folder, defaults))
    check_tiling(reading.vae_tiling, checkpoint.vae.downsampling)
    places = array_sources(folder, file, checkpoint, reading.parts)
    networks = _load_networks(checkpoint, places, dtype, swap_experts, reading)
    has_encoder = checkpoint.image_encoder is not None
    sources = (folder,) if file is None else (folder, file)
    spec = make_spec(name, sources, checkpoint, defaults or {}, scheduler["_class_name"])
    from_noise = "text-to-video" in checkpoint.tasks and not checkpoint.reads_control
    if reading.token_buckets and not from_noise:
        raise ValueError("token_buckets: videos of this model begin with images, of one size each")
    spec = with_token_buckets(spec, reading.token_buckets)
    return pipeline_of(checkpoint)(
        with_presets(spec, folder, OPTIMIZATIONS, reading.qualities, reading.eight_bit),
        checkpoint,
        networks,
        Tools(
            scheduler,
            reading.reader.t5_tokenizer(folder / "tokenizer"),
            ClipPreprocessor.read(folder / "image_processor") if has_encoder else None,
        ),
        reading.vae_tiling,
    )


def pipeline_of(checkpoint: WanCheckpoint) -> type[WanPipeline]:
    """Return the pipeline class of a checkpoint: Animate, VACE or Wan."""
    if checkpoint.animates:
        return AnimatePipeline
    return VacePipeline if checkpoint.reads_control else WanPipeline


def _scheduler_config(folder: Path, chosen: str | None) -> dict[str, Any]:
    checkpoint_config(read_config(folder, "scheduler"), chosen)  # raises for either class name
    return checkpoint_config(read_scheduler(folder), chosen)


def _load_networks(
    checkpoint: WanCheckpoint,
    places: ArraySources,
    dtype: DTypeLike,
    swap_experts: bool | None,
    reading: Reading,
) -> WanNetworks:
    stored, used = (
        reading.rounded(abstract_modules(checkpoint, each), *EXPERTS)
        for each in (dtype, reading.activation_dtype or dtype)
    )
    if swap_experts and len(checkpoint.transformers) < 2:
        raise ValueError("swap_experts is set, but there is only one transformer")
    swaps = _swaps(stored) if swap_experts is None else swap_experts
    on_host = replace(reading, sharding=_as_numpy)
    loaded = {
        part: _load_part(
            on_host if swaps and part in EXPERTS else reading,
            part,
            (getattr(stored, part), getattr(used, part)),
            places[part],
        )
        for part in COMPONENTS
    }
    preview = reading.reader.preview(*flat_frame_encoder(loaded["vae"]))
    return WanNetworks(**loaded, preview=preview)


def abstract_modules(checkpoint: WanCheckpoint, dtype: DTypeLike) -> WanNetworks:
    """Build Wan's networks with shapes only, for the loader to fill and planners to compile."""

    def shapes(kind: Callable[..., nnx.Module], config: Any, dtype: DTypeLike) -> Any:
        if config is None:
            return None
        return abstract_module(kind, config, param_dtype=dtype)

    transformers = checkpoint.transformers
    transformer: type[WanTransformer] = WanTransformer
    if checkpoint.animates:
        transformer = AnimateTransformer
    elif checkpoint.reads_control:
        transformer = VaceTransformer
    faces = checkpoint.transformer if checkpoint.animates else None
    face_encoder = shapes(FaceEncoder, faces, jnp.float32)
    vision = shapes(clip.ClipVisionModel, checkpoint.image_encoder, jnp.float32)
    return WanNetworks(
        transformer=shapes(transformer, transformers.get("transformer"), dtype),
        transformer_2=shapes(transformer, transformers.get("transformer_2"), dtype),
        t5=rename_axes_by_size(shapes(umt5.UMT5Encoder, checkpoint.t5, dtype)),
        vae=shapes(VideoAutoencoder, checkpoint.vae, jnp.float32),
        image_encoder=vision and rename_axes_by_size(vision),
        face_encoder=face_encoder and rename_axes_by_size(face_encoder),
        preview=abstract_preview(checkpoint.vae.z_dim),
    )


def parameter_bytes(module: nnx.Module | None) -> int:
    """Return the bytes of a module's parameters, which may be abstract; 0 without a module."""
    leaves = [] if module is None else jax.tree.leaves(nnx.state(module, nnx.Param))
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def _swaps(networks: WanNetworks) -> bool:
    """Return whether the device's memory is too small for both experts at once."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    sizes = {name: parameter_bytes(module) for name, module in networks._asdict().items()}
    experts = [sizes.pop(name) for name in EXPERTS]
    return must_swap([size for size in experts if size], sum(sizes.values()), limit)


def _load_part(
    reading: Reading,
    part: str,
    modules: tuple[Any, Any],
    place: ArraySource,
) -> Any:
    if modules[0] is None:
        return None
    loaded = reading.network(part, modules, *place)
    if reading.sharding is not _as_numpy:
        return loaded
    graph, state = nnx.split(loaded)
    return nnx.merge(graph, jax.tree.map(np.asarray, state))


def _as_numpy(path: str, leaf: nnx.Variable[Any]) -> SingleDeviceSharding:
    return SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
