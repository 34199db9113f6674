"""Loading of flow-matching checkpoints as pipelines, from configs that a family reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from flax import nnx
from jax.typing import DTypeLike

from models.checkpoint.folder import default_scheduler
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.single_file import FileFormat, Naming, in_folder
from models.control.checkpoint import (
    CONTROLS,
    NO_CONTROL_NETS,
    Controls,
    load_controls,
    with_controls,
)
from models.flow.spec import MakeSpec
from models.interface.apply_presets import with_presets
from models.interface.family import Family
from models.interface.token_buckets import with_token_buckets
from models.loading.abstract import abstract_module
from models.loading.preview import MeanLatents
from models.loading.sources import DEFAULT_READING, Reading
from models.parallel.encoder_axes import rename_axes_by_size
from models.spec.model_spec import ModelSpec
from models.spec.quality_presets import OPTIMIZATIONS, Optimization
from models.vae.config import check_tiling

Networks = TypeVar("Networks", bound=Any)
"""NamedTuple of a family's networks; `preview` is one of them."""
FamilyPipeline = TypeVar("FamilyPipeline")
"""Pipeline of a family."""

ArraySources = dict[str, tuple[Path | ComponentFiles, Renames]]
"""Location of each network's arrays, and the renames of their keys."""

TRANSFORMER = "transformer"
"""Name of the denoising network."""


class Network(NamedTuple):
    """Network of a checkpoint, and the location of its arrays."""

    kind: Callable[..., nnx.Module]
    arguments: tuple[Any, ...]
    """Hashable arguments of `kind`, which also receives `rngs` and `param_dtype`."""
    place: Path | ComponentFiles
    renames: Renames
    by_size: bool = False
    """True for encoders, which all devices share if they are large."""
    in_files: tuple[Naming, ...] = ()
    """Naming schemes of its arrays in single files; none: no single file contains it."""

    def abstract(self, dtype: DTypeLike) -> nnx.Module:
        """Return the network as shapes, with parameters of that dtype."""
        module = abstract_module(self.kind, *self.arguments, param_dtype=dtype)
        return rename_axes_by_size(module) if self.by_size else module


@dataclass(frozen=True)
class FamilyCheckpoint(Generic[Networks, FamilyPipeline]):
    """Checkpoint as a family reads it: its configs, and functions that build spec and pipeline."""

    family: Family
    networks: Mapping[str, Network]
    build_networks: Callable[..., Networks]
    """Function that builds the NamedTuple of networks from keyword arguments."""
    spec: MakeSpec
    """Function that builds the spec from the model's name, the folder and files, and the operator's
    defaults."""
    pipeline: Callable[[ModelSpec, Networks], FamilyPipeline]
    downsampling: int
    """Pixels per latent, along each side."""
    preview: Callable[[Any], tuple[MeanLatents, int]]
    """Function that returns the data to fit a preview to, from the autoencoder."""
    optimizations: Collection[Optimization] = OPTIMIZATIONS
    files: tuple[Path, ...] = ()
    """Weight files outside the folder."""
    controls: Controls = NO_CONTROL_NETS

    def abstract(self, dtype: DTypeLike) -> Networks:
        """Return the networks as shapes, for the loader to fill and the planner to compile."""
        shapes = {name: network.abstract(dtype) for name, network in self.networks.items()}
        return self.build_networks(**shapes, preview=None)

    def array_sources(self, file: Path | None, chosen: Collection[str] = ()) -> ArraySources:
        """Return the location of each network's arrays.

        Args:
            chosen: components of the folder that the operator chose; not read from the file.

        Raises: CheckpointError: a file of another model.
        """
        sources: ArraySources = {
            name: (network.place, network.renames) for name, network in self.networks.items()
        }
        single_files = self.family.single_files
        if file is not None and single_files is not None:
            namings = {name: network.in_files for name, network in self.networks.items()}
            in_file = FileFormat(self.family.title, single_files.transformer_keys, namings)
            sources |= in_file.parts(file)
        return sources | {
            name: in_folder(place, network.in_files, network.renames)
            for name, network in self.networks.items()
            if isinstance(place := network.place, Path) and place.name in chosen
        }


def load_checkpoint(
    read: Callable[[Path, Reading], FamilyCheckpoint[Networks, FamilyPipeline]],
    name: str,
    folder: Path,
    dtype: DTypeLike,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    reading: Reading = DEFAULT_READING,
) -> FamilyPipeline:
    """Read configs, tokenizers and weights; weights go straight to the device in `dtype`.

    Args:
        read: a family's function that reads the configs in a folder of diffusers' layout, which
            determine all sizes; raises ValueError.
        defaults: the operator's defaults of request fields, which override the checkpoint's.
        file: weights of the transformer, and of other networks, which are then not read from the
            folder.
        reading: placement of the arrays, and precision of the networks.

    Raises:
        ValueError: a config that these networks cannot have, with the file and the key; or tiles
            that are not whole latents.
        CheckpointError: files that are missing or damaged; arrays that are missing, unexpected or
            of a wrong shape, all of them at once.
    """
    reading = replace(reading, scheduler=default_scheduler(folder, defaults))
    checkpoint = read(folder, reading)
    check_tiling(reading.vae_tiling, checkpoint.downsampling)
    loaded = reading.networks(
        checkpoint.abstract, dtype, checkpoint.array_sources(file, reading.parts), TRANSFORMER
    )
    preview = reading.reader.preview(*checkpoint.preview(loaded["vae"]))
    controls = loaded_controls(checkpoint.controls, dtype, reading)
    sources = (
        folder,
        *(() if file is None else (file,)),
        *checkpoint.files,
        *checkpoint.controls.paths,
    )
    spec = with_controls(checkpoint.spec(name, sources, defaults or {}), checkpoint.controls)
    spec = with_token_buckets(spec, reading.token_buckets)
    return checkpoint.pipeline(
        with_presets(spec, folder, checkpoint.optimizations, reading.qualities, reading.eight_bit),
        checkpoint.build_networks(**loaded, **controls, preview=preview),
    )


def loaded_controls(controls: Controls, dtype: DTypeLike, reading: Reading) -> dict[str, Any]:
    """Load a model's ControlNets as its network of that name; empty if it has none."""
    loaded = load_controls(controls, (dtype, reading.activation_dtype or dtype), reading)
    return {} if loaded is None else {CONTROLS: loaded}
