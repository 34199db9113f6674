"""Readers for a family's `load`: what it needs beside the configs, from files or not at all.

`FILES` makes a pipeline that can draw. `SHAPES` makes the same pipeline from configs alone: its
weights are shapes, its prompts have no words in them; it can be compiled and its memory counted.
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
from models.text.chat import Chat, QwenTokenizer
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
"""A family's NamedTuple of them."""

ROUNDED_OFF = ("vae",)
"""Networks whose results are rounded to pixels, which cannot be NaN: what is wrong with others
shows in the latents of the warm-up."""


@runtime_checkable
class Reader(Protocol):
    """Fills an abstract pipeline. Raises: CheckpointError: what it reads is not there."""

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

    def qwen_tokenizer(self, folder: Path, chat: Chat) -> Tokenizer:
        """Return the tokenizer of a Qwen encoder, which reads messages of that chat."""

    def gemma_tokenizer(self, folder: Path) -> Tokenizer:
        """Return the tokenizer of a Gemma encoder."""


class Files:
    """Reader of everything from the checkpoint's files.

    Args:
        shared: arrays of what was read before, which what is read now holds, too, where they are
            equal; None: every network has arrays of its own.
    """

    def __init__(self, shared: PlacedArrays | None = None) -> None:
        self.network = partial(loader.load, shared=shared)

    preview = staticmethod(fit_preview)
    clip_tokenizer = staticmethod(ClipTokenizer)
    t5_tokenizer = staticmethod(T5Tokenizer)
    qwen_tokenizer = staticmethod(QwenTokenizer)
    gemma_tokenizer = staticmethod(GemmaTokenizer)


class Shapes:
    """Reader that reads nothing: for configs alone, and for planning before loading."""

    def network(
        self,
        module: Module,
        place: Path | ComponentFiles,
        renames: Renames,
        *,
        sharding: Sharding | None = None,
        change: Change | None = None,
    ) -> Module:
        """The module with a shape, a dtype and a place for each array."""
        graph, state = nnx.split(module)
        flat = [
            (path, leaf.replace(_shape(".".join(map(str, path)), leaf, sharding)))
            for path, leaf in nnx.to_flat_state(state)
        ]
        return nnx.merge(graph, nnx.from_flat_state(flat))  # type: ignore[no-any-return]

    def preview(self, mean_latents: MeanLatents, latent_channels: int) -> nnx.Linear:
        """Return an abstract preview."""
        return abstract_preview(latent_channels)

    def clip_tokenizer(self, folder: Path) -> Tokenizer:
        """Return a tokenizer that reads nothing."""
        return BlankTokenizer()

    def t5_tokenizer(self, folder: Path) -> Tokenizer:
        """Return a tokenizer that reads nothing."""
        return BlankTokenizer()

    def qwen_tokenizer(self, folder: Path, chat: Chat) -> Tokenizer:
        """Return a tokenizer that reads nothing."""
        return BlankTokenizer()

    def gemma_tokenizer(self, folder: Path) -> Tokenizer:
        """Return a tokenizer that reads nothing."""
        return BlankTokenizer()


def _shape(path: str, leaf: nnx.Variable, sharding: Sharding | None) -> jax.ShapeDtypeStruct:
    place = sharding(path, leaf) if sharding else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.get_value().dtype, sharding=place)


def check_finite(name: str, network: nnx.Module) -> None:
    """Check that a network's arrays are finite.

    Raises: CheckpointError: arrays of a network hold NaN or infinity; names them.
    """
    broken = [path for path, leaf in flat_parameters(network).items() if not is_finite(leaf)]
    if broken:
        raise CheckpointError(
            f"{name}: NaN or infinity in {', '.join(broken)}; its files are damaged, or its dtype "
            "is too narrow for them (models.*.dtype)"
        )


def is_finite(leaf: nnx.Variable) -> bool:
    """Return whether an array is, as far as it lies on devices of this process; a mere shape is."""
    array = leaf.get_value()
    shards = array.addressable_shards if isinstance(array, jax.Array) else ()
    return all(np.isfinite(one.data).all() for one in shards if one.replica_id == 0)


@dataclass(frozen=True)
class ImagePromptSource:
    """Place of a network that reads images as prompts.

    Args:
        source: folder, hub id, or single file.
        file: of its weights, where the folder has several; None: the layout says.
        encoder: folder or hub id of the image encoder; None: the source has it.
    """

    source: str
    file: str | None = None
    encoder: str | None = None


@dataclass(frozen=True)
class ControlSource:
    """Place of a ControlNet.

    Args:
        source: folder, hub id, or single file.
        mode: kind of control images of a union; None: it is none.
    """

    source: str
    mode: str | None = None


class CheckpointSource(NamedTuple):
    """Place of a checkpoint beside the model's own.

    Args:
        folder: in diffusers' layout.
        file: holds all weights; the folder's are not read then.
    """

    folder: Path
    file: Path | None = None


FILES: Reader = Files()
SHAPES: Reader = Shapes()


@dataclass(frozen=True)
class Reading:
    """Options of turning a checkpoint into a pipeline, beyond what it says itself.

    Args:
        sharding: where each array goes; None: to JAX's default device.
        on_host: networks that go to host memory beside the device's; `sharding` has to be given.
        activation_dtype: what the networks compute in; None: in the dtype of the weights.
        vae_tiling: of images and videos that do not fit the device as a whole; None: as a whole.
        qualities: the operator's presets, which go before the checkpoint's own.
        rounding: of the denoising networks' blocks to 8 bits; None: they stay as they are.
        fused: what is merged into networks as they are loaded, by their names.
        image_prompts: networks beside the checkpoint's that read images as prompts, by name.
        controls: ControlNets beside the checkpoint's networks, by name.
        max_controls: controls that one request may have.
        refiner: checkpoint that takes the last steps of requests that say so.
        latent_upsampler: folder, hub id or single file of a network that enlarges latents between
            two passes; None: the checkpoint's own, if it has one.
        pipeline: class of diffusers' pipeline whose inputs are taken; None: the checkpoint's own.
        token_buckets: work that a step of padded tokens may cost more, as a fraction; 0: nothing is
            padded, and each size has steps of its own.
        reader: of everything but the configs; with `SHAPES` no weights are needed.
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
    pipeline: str | None = None
    token_buckets: float = 0.0
    reader: Reader = FILES

    @property
    def eight_bit(self) -> EightBit | None:
        """Place of products in 8 bits; None: nowhere."""
        return None if self.rounding is None else self.rounding.where

    def rounded(self, networks: Networks, *names: str) -> Networks:
        """The same abstract networks, the blocks of those in 8 bits where that is asked for.

        Args:
            names: of networks that denoise; of these, any may be None.
        """
        if self.rounding is None:
            return networks
        there = {name: getattr(networks, name) for name in names}
        return networks._replace(
            **{name: self.rounding.of(network) for name, network in there.items() if network}
        )

    def networks(
        self,
        shapes: Callable[[DTypeLike], Networks],
        dtype: DTypeLike,
        places: Mapping[str, tuple[Path | ComponentFiles, Renames]],
        *denoising: str,
    ) -> dict[str, Any]:
        """Load the networks of a family, by name.

        Args:
            shapes: the abstract networks, their parameters of a dtype.
            dtype: that they are stored in.
            places: where each network's arrays lie, and their names there.
            denoising: names of the networks whose blocks may be in 8 bits.

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
        """Load one network of a family.

        Args:
            modules: abstract, with its parameters as they are stored, and as they are used.

        Raises: CheckpointError: it cannot be read, or nobody would see that it gives no numbers.
        """
        stored, used = modules
        sharding = self.sharding
        if sharding is not None and name in self.on_host:
            sharding = loader.beside(sharding)
        change = self.fused.get(name)
        loaded = self.reader.network(stored, place, renames, sharding=sharding, change=change)
        if name in ROUNDED_OFF:
            check_finite(name, loaded)
        return used_as(loaded, used)


AS_IT_IS = Reading()
"""The whole checkpoint, as it is, onto one device."""
