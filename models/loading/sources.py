"""Readers for a family's `load`: networks, previews and tokenizers, from files or as shapes.

`FILES` creates a pipeline that can generate. `SHAPES` creates the same pipeline from configs alone,
with abstract weights and blank tokenizers. It can be compiled, and its memory can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from models.checkpoint.folder import CheckpointError
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.loading.preview import MeanLatents, abstract_preview, fit_preview
from models.parallel.dtypes import used_as
from models.spec.quality_presets import EightBit, Quality
from models.text.chat import Chat, chat_tokenizer
from models.text.tokenizer import (
    BlankTokenizer,
    ClipTokenizer,
    GemmaTokenizer,
    T5Tokenizer,
    Tokenizer,
)
from models.vae.config import Tiling
from models.weights import loader
from models.weights.loader import Change, Module, Sharding, flat_parameters
from models.weights.quantize import Rounding
from models.weights.sharing import PlacedArrays

Networks = TypeVar("Networks", bound=Any)
"""A family's NamedTuple of networks."""

CHECKED_FOR_NAN = ("vae",)
"""Networks whose output is rounded to pixels, which hides NaN. NaN from other networks shows in the
warm-up's latents."""


@runtime_checkable
class Reader(Protocol):
    """Source of a pipeline's contents. Raises: CheckpointError: files are missing."""

    def network(
        self,
        module: Module,
        place: Path | ComponentFiles,
        renames: Renames,
        *,
        sharding: Sharding | None = None,
        change: Change | None = None,
    ) -> Module:
        """Load a network, as `models.weights.loader.load`."""
        ...

    def preview(self, mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
        """Fit a preview, as `models.loading.preview.fit_preview`."""
        ...

    def clip_tokenizer(self, folder: Path) -> Tokenizer:
        """Return the tokenizer of a CLIP encoder."""

    def t5_tokenizer(self, folder: Path) -> Tokenizer:
        """Return the tokenizer of a T5 encoder."""

    def chat_tokenizer(self, folder: Path, chat: Chat) -> Tokenizer:
        """Return the tokenizer of a chat model, for messages of that chat template."""

    def gemma_tokenizer(self, folder: Path) -> Tokenizer:
        """Return the tokenizer of a Gemma encoder."""


class Files:
    """Reader that loads everything from the checkpoint's files.

    Args:
        shared: arrays of earlier networks, reused where equal; None: no sharing.
    """

    def __init__(self, shared: PlacedArrays | None = None) -> None:
        self.network = partial(loader.load, shared=shared)

    preview = staticmethod(fit_preview)
    clip_tokenizer = staticmethod(ClipTokenizer)
    t5_tokenizer = staticmethod(T5Tokenizer)
    chat_tokenizer = staticmethod(chat_tokenizer)
    gemma_tokenizer = staticmethod(GemmaTokenizer)


class Shapes:
    """Reader without files: for configs alone, and for planning before loading."""

    def network(
        self,
        module: Module,
        place: Path | ComponentFiles,
        renames: Renames,
        *,
        sharding: Sharding | None = None,
        change: Change | None = None,
    ) -> Module:
        """Return the module with a shape, a dtype and a sharding for each array."""
        graph, state = nnx.split(module)
        flat = [
            (path, leaf.replace(_shape(".".join(map(str, path)), leaf, sharding)))
            for path, leaf in nnx.to_flat_state(state)
        ]
        abstract: Module = nnx.merge(graph, nnx.from_flat_state(flat))
        return abstract

    def preview(self, mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
        """Return an abstract preview layer, without fitting it."""
        return abstract_preview(latent_channels)

    def clip_tokenizer(self, folder: Path) -> Tokenizer:
        """Return a blank tokenizer in place of CLIP's, since no files are read."""
        return BlankTokenizer()

    def t5_tokenizer(self, folder: Path) -> Tokenizer:
        """Return a blank tokenizer in place of T5's, since no files are read."""
        return BlankTokenizer()

    def chat_tokenizer(self, folder: Path, chat: Chat) -> Tokenizer:
        """Return a blank tokenizer in place of a chat model's, since no files are read."""
        return BlankTokenizer()

    def gemma_tokenizer(self, folder: Path) -> Tokenizer:
        """Return a blank tokenizer in place of Gemma's, since no files are read."""
        return BlankTokenizer()


def _shape(path: str, leaf: nnx.Variable[Any], sharding: Sharding | None) -> jax.ShapeDtypeStruct:
    place = sharding(path, leaf) if sharding else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.get_value().dtype, sharding=place)


def check_finite(name: str, network: nnx.Module) -> None:
    """Verify that all arrays of a network are finite.

    Raises: CheckpointError: arrays contain NaN or infinity; names them.
    """
    broken = [path for path, leaf in flat_parameters(network).items() if not is_finite(leaf)]
    if broken:
        raise CheckpointError(
            f"{name}: NaN or infinity in {', '.join(broken)}; its files are damaged, or its dtype "
            "is too narrow for them (models.*.dtype)"
        )


def is_finite(leaf: nnx.Variable[Any]) -> bool:
    """Return whether this process's part of an array is finite; true for abstract arrays."""
    array = leaf.get_value()
    shards = array.addressable_shards if isinstance(array, jax.Array) else ()
    return all(np.isfinite(shard.data).all() for shard in shards if shard.replica_id == 0)


@dataclass(frozen=True)
class ImagePromptSource:
    """Location of a network for image prompts.

    Args:
        source: folder, hub id, or single file.
        file: weight file, if the folder has several; None: chosen by the layout.
        encoder: folder or hub id of the image encoder; None: included in the source.
    """

    source: str
    file: str | None = None
    encoder: str | None = None


@dataclass(frozen=True)
class ControlSource:
    """Location of a model's ControlNet.

    Args:
        source: folder, hub id, or single file.
        mode: kind of control images of a union ControlNet; None: not a union.
    """

    source: str
    mode: str | None = None


class CheckpointSource(NamedTuple):
    """Location of an additional checkpoint, such as a refiner.

    Args:
        folder: in diffusers' layout.
        file: contains all weights; the folder's weights are then ignored.
    """

    folder: Path
    file: Path | None = None


FILES: Reader = Files()
SHAPES: Reader = Shapes()


@dataclass(frozen=True)
class Reading:
    """Options for creating a pipeline from a checkpoint.

    Args:
        sharding: of each array; None: JAX's default device.
        on_host: networks that are placed in host memory; requires `sharding`.
        activation_dtype: dtype that the networks compute in; None: dtype of the weights.
        vae_tiling: for images and videos that do not fit the device untiled; None: no tiling.
        qualities: the operator's presets, which override the checkpoint's.
        rounding: of the denoising networks' blocks to 8 bits; None: exact.
        fused: changes that are merged into networks while loading, by network name.
        image_prompts: additional networks for image prompts, by name.
        controls: additional ControlNets, by name.
        max_controls: maximum controls of a request.
        refiner: checkpoint that runs the last steps of requests with a refiner.
        latent_upsampler: folder, hub id or single file of a network that enlarges latents between
            two passes; None: the checkpoint's own, if any.
        parts: components of the folder that the operator chose (`component_overrides.py`).
        scheduler: default scheduler of requests, which replaces a checkpoint's that is not served.
        pipeline: diffusers pipeline class whose inputs are supported; None: the checkpoint's.
        token_buckets: maximum extra work of a padded step, as a fraction; 0: no padding, and each
            size has its own steps.
        reader: source of everything except the configs; `SHAPES` needs no weights.
    """

    sharding: Sharding | None = None
    on_host: Collection[str] = ()
    activation_dtype: DTypeLike | None = None
    vae_tiling: Tiling | None = None
    qualities: Mapping[str, Quality] = field(default_factory=dict)
    rounding: Rounding | None = None
    fused: Mapping[str, Change] = field(default_factory=dict)
    image_prompts: Mapping[str, ImagePromptSource] = field(default_factory=dict)
    controls: Mapping[str, ControlSource] = field(default_factory=dict)
    max_controls: int = 0
    refiner: CheckpointSource | None = None
    latent_upsampler: str | None = None
    parts: Collection[str] = ()
    scheduler: str | None = None
    pipeline: str | None = None
    token_buckets: float = 0.0
    reader: Reader = FILES

    @property
    def eight_bit(self) -> EightBit | None:
        """Storage of 8-bit weights; None: none."""
        return None if self.rounding is None else self.rounding.where

    def rounded(self, networks: Networks, *names: str) -> Networks:
        """Return the abstract networks, with 8-bit blocks if configured.

        Args:
            names: of denoising networks; any of them may be None.
        """
        if self.rounding is None:
            return networks
        selected = {name: getattr(networks, name) for name in names}
        abstract: Networks = networks._replace(
            **{name: self.rounding.of(network) for name, network in selected.items() if network}
        )
        return abstract

    def networks(
        self,
        shapes: Callable[[DTypeLike], Networks],
        dtype: DTypeLike,
        places: Mapping[str, tuple[Path | ComponentFiles, Renames]],
        *denoising: str,
    ) -> dict[str, Any]:
        """Load all networks of a family's checkpoint, by name.

        Args:
            shapes: returns the abstract networks with parameters of a dtype.
            dtype: of the stored parameters.
            places: each network's files and rename table.
            denoising: names of the networks whose blocks may have 8 bits.

        Raises: CheckpointError: as `network`.
        """
        stored, used = (
            self.rounded(shapes(each), *denoising)
            for each in (dtype, self.activation_dtype or dtype)
        )
        return {
            name: self.network(name, (getattr(stored, name), getattr(used, name)), place, renames)
            for name, (place, renames) in places.items()
        }

    def network(
        self,
        name: str,
        modules: tuple[Module, nnx.Module],
        place: Path | ComponentFiles,
        renames: Renames,
    ) -> Module:
        """Load one network of a family's checkpoint.

        Args:
            modules: abstract, with parameters as stored, and as used.

        Raises: CheckpointError: unreadable, or NaN in a network of `CHECKED_FOR_NAN`.
        """
        stored, used = modules
        sharding = self.sharding
        if sharding is not None and name in self.on_host:
            sharding = loader.in_host_memory(sharding)
        change = self.fused.get(name)
        loaded = self.reader.network(stored, place, renames, sharding=sharding, change=change)
        if name in CHECKED_FOR_NAN:
            check_finite(name, loaded)
        return used_as(loaded, used)


DEFAULT_READING = Reading()
"""Default options: the unchanged checkpoint on one device."""
