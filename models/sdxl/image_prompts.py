"""Image prompts of SDXL: loads IP-Adapters and their image encoders, and encodes images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.checkpoint.folder import CheckpointError, read_config
from models.checkpoint.hub import resolve, resolve_file
from models.checkpoint.safetensors import ComponentFiles
from models.interface.denoising_pipeline import flatten_prompts
from models.interface.image_prompts import requested_image_prompts
from models.interface.images import open_image
from models.interface.pipeline import PyTree
from models.loading.abstract import abstract_module
from models.loading.sources import ImagePromptSource, Reading
from models.parallel.encoder_axes import rename_axes_by_size
from models.sdxl.config import UNetConfig
from models.sdxl.ip_adapter import NO_IMAGES, ImageKeys, ImageLevels, IpAdapter, IpAdapterConfig
from models.sdxl.ip_adapter_file import config_of, renames_of
from models.spec.model_spec import ModelSpec
from models.spec.request import Request
from models.vision.clip import PROJECTED_RENAMES, ClipVisionConfig, ClipVisionModelWithProjection
from models.vision.preprocess import ClipPreprocessor

ROW = "image_prompts"
"""Leaf of a row with the image prompts' keys and values."""
PIXELS, SCALES = "image_prompt.", "image_prompt_scales."
"""Prefixes of the input names with an IP-Adapter's pixels and scales."""
ENCODER = "image_encoder"
"""Default folder of the image encoder, next to an adapter's file. Source: diffusers'
load_ip_adapter."""
PENULTIMATE = -2
"""Index of the hidden state that a resampler reads."""


@dataclass(frozen=True)
class IpAdapterFiles:
    """IP-Adapter on disk, before its weights are loaded."""

    file: Path
    encoder_folder: Path
    config: IpAdapterConfig
    encoder: ClipVisionConfig

    @property
    def tokens(self) -> int:
        """Number of tokens per image prompt."""
        return self.config.tokens

    @property
    def paths(self) -> tuple[Path, Path]:
        """Paths of the adapter and of its image encoder."""
        return self.file, self.encoder_folder

    @property
    def preprocessor(self) -> ClipPreprocessor:
        """CLIP preprocessing at the encoder's image size, as in diffusers."""
        side = self.encoder.image_size
        return ClipPreprocessor(size=side, crop_size=(side, side))


class ImagePromptInputs(NamedTuple):
    """Image prompts of one request: inputs of `encode`, and their part of the bucket key."""

    inputs: dict[str, np.ndarray]
    key: str


class ImagePromptNetworks(nnx.Module):
    """IP-Adapters by name, and their image encoders; adapters with the same folder share one."""

    def __init__(
        self, adapters: Mapping[str, IpAdapter], encoders: Mapping[str, nnx.Module], of: Any
    ) -> None:
        self.adapters = nnx.Dict(adapters)
        self.encoders = nnx.Dict(encoders)
        self.of = tuple(of)

    def __call__(
        self,
        name: str,
        pixels: Float[Array, "images height width 3"],
        scales: Float[Array, " images"],
        prompts: int,
    ) -> ImageLevels:
        """Return keys and values of an adapter's images per prompt; the second prompt is negative.

        Source: diffusers' StableDiffusionXLPipeline.encode_image. The negative prompt uses zeros:
        embeddings without a resampler, else pixels.
        """
        adapter, encoder = self.adapters[name], self.encoders[dict(self.of)[name]]

        def features(pixels: Array) -> Array:
            encoded = encoder(pixels)
            states: Array = (
                encoded.pooled
                if adapter.config.resampler is None
                else encoded.hidden_states[PENULTIMATE]
            )
            return states

        positive = features(pixels)
        if prompts == 1:
            return adapter(positive[None], scales)
        is_plain = adapter.config.resampler is None
        negative = jnp.zeros_like(positive) if is_plain else features(jnp.zeros_like(pixels))
        return adapter(jnp.stack([positive, negative]), scales)


def read_adapters(
    sources: Mapping[str, ImagePromptSource], unet: UNetConfig
) -> dict[str, IpAdapterFiles]:
    """Read the configs of a model's adapters by name.

    Raises: CheckpointError, ValueError: an adapter is unusable; gives the reason.
    """
    return {name: _adapter(source, unet) for name, source in sources.items()}


def _adapter(source: ImagePromptSource, unet: UNetConfig) -> IpAdapterFiles:
    file, folder = _paths_of(source)
    encoder = ClipVisionConfig.from_dict(read_config(folder.parent, folder.name))
    config = config_of(file, unet)
    features = encoder.projection_dim if config.resampler is None else encoder.hidden_size
    if features != config.image_features:
        raise CheckpointError(
            f"{file}: it reads {config.image_features} features of an image, and the encoder in"
            f" {folder} gives {features}; name the adapter's own as encoder"
        )
    return IpAdapterFiles(file, folder, config, encoder)


def _paths_of(source: ImagePromptSource) -> tuple[Path, Path]:
    """Return the paths of an adapter's file and its image encoder. Raises: CheckpointError."""
    if source.file is None:
        file = resolve_file(source.source)
        root = file.parent
    else:
        default = Path(source.file).parent / ENCODER
        subfolder = source.encoder or default.as_posix()
        patterns = (source.file, f"{subfolder}/*.json", f"{subfolder}/*.safetensors")
        root = resolve(source.source, patterns=patterns)
        file = root / source.file
    if source.encoder is None:
        return file, _folder(file.parent / ENCODER, file)
    inside = root / source.encoder
    return file, _folder(inside if inside.is_dir() else resolve(source.encoder), file)


def _folder(folder: Path, file: Path) -> Path:
    """Return an image encoder's folder. Raises: CheckpointError: it has no config."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{file}: no image encoder in {folder}; name its folder or hub id as encoder"
        )
    return folder


def load_adapters(
    adapters: Mapping[str, IpAdapterFiles],
    unet: UNetConfig,
    reading: Reading,
    dtype: DTypeLike,
    activation_dtype: DTypeLike,
) -> ImagePromptNetworks | None:
    """Load adapters and their encoders; None if there are no adapters.

    Raises: CheckpointError: missing, unexpected or misshapen arrays.
    """
    if not adapters:
        return None

    def loaded(kind: Any, place: Path | ComponentFiles, renames: Any, *args: Any) -> Any:
        modules = (
            rename_axes_by_size(abstract_module(kind, *args, param_dtype=each))
            for each in (dtype, activation_dtype)
        )
        return reading.network(ROW, tuple(modules), place, renames)

    encoder = partial(loaded, ClipVisionModelWithProjection)
    folders = {files.encoder_folder: files.encoder for files in adapters.values()}
    keys = {folder: f"encoder_{number}" for number, folder in enumerate(folders)}
    return ImagePromptNetworks(
        {
            name: loaded(
                IpAdapter,
                ComponentFiles(f"image_prompts.{name}", (files.file,)),
                renames_of(files.config, unet),
                files.config,
                unet,
            )
            for name, files in adapters.items()
        },
        {
            keys[folder]: encoder(folder, PROJECTED_RENAMES, config)
            for folder, config in folders.items()
        },
        ((name, keys[files.encoder_folder]) for name, files in adapters.items()),
    )


def read_image_prompts(
    request: Request,
    images: Mapping[str, bytes],
    spec: ModelSpec,
    preprocessors: Mapping[str, ClipPreprocessor],
) -> ImagePromptInputs:
    """Preprocess a request's image prompts: pixels [images, h, w, 3] and scales, by adapter.

    Raises: RequestError: an image is missing or cannot be decoded.
    """
    prompts = requested_image_prompts(request.image_prompts, images, spec)
    inputs: dict[str, np.ndarray] = {}
    key = ""
    for name in sorted({prompt.name for prompt in prompts}):
        matches = [prompt for prompt in prompts if prompt.name == name]
        read = [preprocessors[name](open_image(prompt.image, prompt.field)) for prompt in matches]
        inputs[PIXELS + name] = np.stack(read)
        inputs[SCALES + name] = np.array([prompt.scale for prompt in matches], np.float32)
        key += f",{name}={len(matches)}"
    return ImagePromptInputs(inputs, key)


def encode_image_prompts(
    networks: ImagePromptNetworks | None, inputs: Mapping[str, jax.Array]
) -> dict[str, PyTree]:
    """Encode a row's image prompts into its leaf `ROW`, [prompts, layers, tokens, width]."""
    names = [name.removeprefix(PIXELS) for name in sorted(inputs) if name.startswith(PIXELS)]
    if networks is None or not names:
        return {}
    prompts = len(inputs["active_prompts"])
    each = [networks(name, inputs[PIXELS + name], inputs[SCALES + name], prompts) for name in names]
    return {ROW: jax.tree.map(lambda *levels: levels, *each, is_leaf=_is_keys)}


def of_layers(rows: PyTree) -> ImageLevels:
    """Return the rows' image prompts with the layer axis first."""
    if ROW not in rows:
        return NO_IMAGES
    levels: ImageLevels = jax.tree.map(
        lambda leaf: jnp.moveaxis(flatten_prompts(leaf), 1, 0), rows[ROW]
    )
    return levels


def _is_keys(node: Any) -> bool:
    return isinstance(node, ImageKeys)
