"""Checkpoints of flow-matching transformers → pipelines, of the configs as a family reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from flax import nnx
from jax.typing import DTypeLike

from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.single_file import FileFormat, Naming
from models.control.checkpoint import (
    CONTROLS,
    NO_CONTROL_NETS,
    Controls,
    load_controls,
    with_controls,
)
from models.flow.spec import MakeSpec
from models.interface.apply_presets import with_presets
from models.interface.token_buckets import with_token_buckets
from models.loading.abstract import abstract_module
from models.loading.preview import MeanLatents
from models.loading.sources import AS_IT_IS, Reading
from models.parallel.by_size import placed_by_size
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import LEVERS, Lever
from models.vae.config import check_tiling

Networks = TypeVar("Networks", bound=Any)
"""A family's NamedTuple of them, with one that is `preview`."""
Made = TypeVar("Made")
"""A family's pipeline."""

TRANSFORMER = "transformer"
"""Name of the network that denoises."""


class Network(NamedTuple):
    """Network of a checkpoint, and where its arrays lie."""

    kind: Callable[..., nnx.Module]
    arguments: tuple[Any, ...]
    """Arguments of `kind`, which can be hashed; it gets `rngs` and `param_dtype` besides."""
    place: Path | ComponentFiles
    renames: Renames
    by_size: bool = False
    """True of encoders, which all devices share where they are large."""
    in_files: tuple[Naming, ...] = ()
    """Ways in which single files name its arrays; none: they never have it."""

    def abstract(self, dtype: DTypeLike) -> nnx.Module:
        """Return the network as shapes, its parameters of that dtype."""
        module = abstract_module(self.kind, *self.arguments, param_dtype=dtype)
        return placed_by_size(module) if self.by_size else module


@dataclass(frozen=True)
class FamilyCheckpoint(Generic[Networks, Made]):
    """Checkpoint as a family reads it: its configs, and what is made of them."""

    networks: Mapping[str, Network]
    collected: Callable[..., Networks]
    """Make the networks one value, of each and of `preview` by their names."""
    model: str
    """Name of the models, for messages about single files."""
    beginnings: str
    """Beginnings of the transformer's keys in single files, for messages."""
    spec: MakeSpec
    """Make the spec, of the model's name, the folder and files, and the operator's defaults."""
    pipeline: Callable[[ModelSpec, Networks], Made]
    downsampling: int
    """Pixels a latent, along each side."""
    preview: Callable[[Any], tuple[MeanLatents, int]]
    """Return what a preview is fitted to, of the autoencoder."""
    levers: Collection[Lever] = LEVERS
    files: tuple[Path, ...] = ()
    """Files of weights that do not lie in the folder."""
    controls: Controls = NO_CONTROL_NETS

    def abstract(self, dtype: DTypeLike) -> Networks:
        """Return the networks as shapes: what the loader fills, and what a planner compiles."""
        shapes = {name: one.abstract(dtype) for name, one in self.networks.items()}
        return self.collected(**shapes, preview=None)

    def places(self, file: Path | None) -> dict[str, tuple[Path | ComponentFiles, Renames]]:
        """Return where each network's arrays lie. Raises: CheckpointError: another's file."""
        namings = {name: one.in_files for name, one in self.networks.items()}
        in_file = FileFormat(self.model, self.beginnings, namings)
        there = {} if file is None else in_file.parts(file)
        own = {name: (one.place, one.renames) for name, one in self.networks.items()}
        return {name: there.get(name, place) for name, place in own.items()}


def load(
    read: Callable[[Path, Reading], FamilyCheckpoint[Networks, Made]],
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    reading: Reading = AS_IT_IS,
) -> Made:
    """Read configs, tokenizers and weights; the weights go straight to the device in `dtype`.

    Args:
        read: a family's reading of the configs in a folder in diffusers' layout, which every size
            comes from; it raises ValueError.
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
    found = read(folder, reading)
    check_tiling(reading.vae_tiling, found.downsampling)
    loaded = reading.networks(found.abstract, dtype, found.places(file), TRANSFORMER)
    preview = reading.reader.preview(*found.preview(loaded["vae"]))
    beside = loaded_controls(found.controls, dtype, reading)
    sources = (folder, *(() if file is None else (file,)), *found.files, *found.controls.paths)
    spec = with_controls(found.spec(name, sources, defaults or {}), found.controls)
    spec = with_token_buckets(spec, reading.token_buckets)
    return found.pipeline(
        with_presets(spec, folder, found.levers, reading.qualities, reading.eight_bit),
        found.collected(**loaded, **beside, preview=preview),
    )


def loaded_controls(controls: Controls, dtype: DTypeLike, reading: Reading) -> dict[str, Any]:
    """Load a model's ControlNets, as its network of that name; none where it has none."""
    loaded = load_controls(controls, (dtype, reading.activation_dtype or dtype), reading)
    return {} if loaded is None else {CONTROLS: loaded}
