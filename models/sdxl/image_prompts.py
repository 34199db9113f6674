"""Image prompts of SDXL: IP-Adapters beside the checkpoint, and the images that they read."""

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
from models.interface.denoising_pipeline import each_alone
from models.interface.image_prompts import requested_image_prompts
from models.interface.images import open_image
from models.interface.pipeline import Fields, PyTree
from models.loading.abstract import abstract_module
from models.loading.sources import ImagePromptSource, Reading
from models.parallel.by_size import placed_by_size
from models.sdxl.config import UNetConfig
from models.sdxl.ip_adapter import NO_IMAGES, ImageKeys, ImageLevels, IpAdapter, IpAdapterConfig
from models.sdxl.ip_adapter_file import config_of, renames_of
from models.spec.model_spec import ModelSpec
from models.vision.clip import PROJECTED_RENAMES, ClipVisionConfig, ClipVisionModelWithProjection
from models.vision.preprocess import ClipPreprocessor

ROW = "image_prompts"
"""Leaf of a row that holds keys and values."""
PIXELS, SCALES = "image_prompt.", "image_prompt_scales."
"""Inputs of each adapter, before its name."""
ENCODER = "image_encoder"
"""Folder of the encoder beside an adapter's file. Source: diffusers' load_ip_adapter."""
PENULTIMATE = -2
"""Hidden state that a resampler reads."""


@dataclass(frozen=True)
class IpAdapterFiles:
    """IP-Adapter in its files, not loaded yet."""

    file: Path
    encoder_folder: Path
    config: IpAdapterConfig
    encoder: ClipVisionConfig

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.config.tokens

    @property
    def places(self) -> tuple[Path, Path]:
        """Return where its arrays are."""
        return self.file, self.encoder_folder

    @property
    def preprocessor(self) -> ClipPreprocessor:
        """CLIP's preprocessing at the encoder's size, as diffusers makes it."""
        side = self.encoder.image_size
        return ClipPreprocessor(size=side, crop_size=(side, side))


class ReadImagePrompts(NamedTuple):
    """Image prompts of a request: inputs of `encode`, and their part of the row's bucket."""

    inputs: dict[str, np.ndarray]
    key: str


class ImagePromptNetworks(nnx.Module):
    """IP-Adapters by name, and their image encoders: one of each folder."""

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
        """Return keys and values of an adapter's images for each prompt; the second is negative.

        Source: diffusers' StableDiffusionXLPipeline.encode_image: zeros for the negative one,
        before the projection or in place of the pixels.
        """
        adapter, encoder = self.adapters[name], self.encoders[dict(self.of)[name]]

        def seen(pixels: Array) -> Array:
            if adapter.config.resampler is None:
                return encoder(pixels).pooled
            return encoder(pixels).hidden_states[PENULTIMATE]

        positive = seen(pixels)
        if prompts == 1:
            return adapter(positive[None], scales)
        is_plain = adapter.config.resampler is None
        negative = jnp.zeros_like(positive) if is_plain else seen(jnp.zeros_like(pixels))
        return adapter(jnp.stack([positive, negative]), scales)


def read_adapters(
    sources: Mapping[str, ImagePromptSource], unet: UNetConfig
) -> dict[str, IpAdapterFiles]:
    """Read the sizes of a model's adapters by name.

    Raises: CheckpointError, ValueError: one cannot be used; says why.
    """
    return {name: _adapter(source, unet) for name, source in sources.items()}


def _adapter(source: ImagePromptSource, unet: UNetConfig) -> IpAdapterFiles:
    file, folder = _places(source)
    encoder = ClipVisionConfig.from_dict(read_config(folder.parent, folder.name))
    config = config_of(file, unet)
    given = encoder.projection_dim if config.resampler is None else encoder.hidden_size
    if given != config.image_features:
        raise CheckpointError(
            f"{file}: it reads {config.image_features} features of an image, and the encoder in"
            f" {folder} gives {given}; name the adapter's own as encoder"
        )
    return IpAdapterFiles(file, folder, config, encoder)


def _places(source: ImagePromptSource) -> tuple[Path, Path]:
    """Return the adapter's file and its encoder's folder. Raises: CheckpointError."""
    if source.file is None:
        file = resolve_file(source.source)
        root = file.parent
    else:
        home = Path(source.file).parent / ENCODER
        wanted = source.encoder or home.as_posix()
        patterns = (source.file, f"{wanted}/*.json", f"{wanted}/*.safetensors")
        root = resolve(source.source, patterns=patterns)
        file = root / source.file
    if source.encoder is None:
        return file, _folder(file.parent / ENCODER, file)
    inside = root / source.encoder
    return file, _folder(inside if inside.is_dir() else resolve(source.encoder), file)


def _folder(folder: Path, file: Path) -> Path:
    """Return an encoder's folder. Raises: CheckpointError: it has no config."""
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
    """Load adapters and their encoders; None: there are none.

    Raises: CheckpointError: arrays that are missing, stray or misshapen.
    """
    if not adapters:
        return None

    def loaded(kind: Any, place: Path | ComponentFiles, renames: Any, *args: Any) -> Any:
        modules = (
            placed_by_size(abstract_module(kind, *args, param_dtype=each))
            for each in (dtype, activation_dtype)
        )
        return reading.network(ROW, tuple(modules), place, renames)  # type: ignore[arg-type]

    encoder = partial(loaded, ClipVisionModelWithProjection)
    folders = {one.encoder_folder: one.encoder for one in adapters.values()}
    keys = {folder: f"encoder_{number}" for number, folder in enumerate(folders)}
    return ImagePromptNetworks(
        {
            name: loaded(
                IpAdapter,
                ComponentFiles(f"image_prompts.{name}", (one.file,)),
                renames_of(one.config, unet),
                one.config,
                unet,
            )
            for name, one in adapters.items()
        },
        {
            keys[folder]: encoder(folder, PROJECTED_RENAMES, config)
            for folder, config in folders.items()
        },
        ((name, keys[one.encoder_folder]) for name, one in adapters.items()),
    )


def read_image_prompts(
    fields: Fields,
    images: Mapping[str, bytes],
    spec: ModelSpec,
    preprocessors: Mapping[str, ClipPreprocessor],
) -> ReadImagePrompts:
    """Read a request's image prompts: pixels [images, height, width, 3] and scales, by adapter.

    Raises: RequestError: an image is missing or cannot be read.
    """
    asked = requested_image_prompts(fields, images, spec)
    inputs: dict[str, np.ndarray] = {}
    key = ""
    for name in sorted({one.name for one in asked}):
        own = [one for one in asked if one.name == name]
        read = [preprocessors[name](open_image(one.image, one.field)) for one in own]
        inputs[PIXELS + name] = np.stack(read)
        inputs[SCALES + name] = np.array([one.scale for one in own], np.float32)
        key += f",{name}={len(own)}"
    return ReadImagePrompts(inputs, key)


def encoded(
    networks: ImagePromptNetworks | None, inputs: Mapping[str, jax.Array]
) -> dict[str, PyTree]:
    """Return the leaf of a row that holds its image prompts, [prompts, layers, tokens, width]."""
    names = [name.removeprefix(PIXELS) for name in sorted(inputs) if name.startswith(PIXELS)]
    if networks is None or not names:
        return {}
    prompts = len(inputs["heard"])
    each = [networks(name, inputs[PIXELS + name], inputs[SCALES + name], prompts) for name in names]
    return {ROW: jax.tree.map(lambda *one: one, *each, is_leaf=_is_keys)}


def of_layers(rows: PyTree) -> ImageLevels:
    """Return the image prompts of each prompt of rows, with the layers in front."""
    if ROW not in rows:
        return NO_IMAGES
    found: ImageLevels = jax.tree.map(lambda leaf: jnp.moveaxis(each_alone(leaf), 1, 0), rows[ROW])
    return found


def _is_keys(node: Any) -> bool:
    return isinstance(node, ImageKeys)
