"""Loading of a model's ControlNets, which settings list by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax import nnx
from jax.typing import DTypeLike

from models.checkpoint.folder import CheckpointError
from models.checkpoint.hub import resolve, resolve_file, single_file
from models.checkpoint.key_mapping import Renames
from models.checkpoint.object_folder import is_url
from models.checkpoint.safetensors import ComponentFiles
from models.control.slots import NO_CONTROLS, ControlSlots
from models.loading.abstract import abstract_module
from models.loading.sources import ControlSource, Reading
from models.spec.controls import FIELD, ControlKind
from models.spec.model_spec import ModelSpec

CONTROLS = "controls"
"""Field of the ControlNets in a pipeline's networks: a list, or None."""
FILES = (
    "config.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model-*.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
)
"""Files of a hub repository to download, without half precision copies."""


@dataclass(frozen=True)
class UnionKinds:
    """Kinds of control images that a union ControlNet distinguishes."""

    count: int
    names: Mapping[str, int]
    """Numbers of the kinds that have a name."""
    is_multi_image: bool = False
    """Whether it reads several images in one run."""

    def number_of(self, mode: str | None) -> int:
        """Return the number of a control type, by name or number.

        Raises: ValueError: unknown.
        """
        names = ", ".join(name for name, number in self.names.items() if number < self.count)
        if mode is None:
            raise ValueError(f"is a union; set its mode: {names}")
        kind = int(mode) if mode.isdecimal() else self.names.get(mode, self.count)
        if kind >= self.count:
            raise ValueError(f"mode {mode!r} must be one of {names}")
        return kind


@dataclass(frozen=True)
class ControlNetFiles:
    """Checkpoint of a single ControlNet."""

    network: Callable[..., nnx.Module]
    """Constructor, which receives the config."""
    config: Any
    place: Path | ComponentFiles
    renames: Renames
    work: float
    """Work per step, as a share of the controlled network's work."""
    kinds: UnionKinds | None = None
    """Kinds of a union ControlNet; None: a single kind of image."""


ReadFiles = Callable[[Path], ControlNetFiles]
"""Function that reads a folder or file. Raises: CheckpointError, ValueError: unsupported, or does
not fit the model."""


@dataclass(frozen=True)
class Controls:
    """ControlNets of a model; a network with several names occurs once."""

    networks: tuple[ControlNetFiles, ...] = ()
    slots: ControlSlots = NO_CONTROLS
    described: Mapping[str, ControlKind] | None = None
    paths: tuple[Path, ...] = ()
    """Folders and files of all networks, for fingerprints."""


NO_CONTROL_NETS = Controls()


def read_controls(reading: Reading, steered: str, read: ReadFiles) -> Controls:
    """Read the configs of a model's ControlNets.

    Args:
        steered: name of the network that they control.

    Raises: CheckpointError: a ControlNet is unreadable, unsupported, or does not fit; names it.
    """
    sources = reading.controls
    if not sources:
        return NO_CONTROL_NETS
    networks: dict[Path, ControlNetFiles] = {}
    by_name = {}
    for name, source in sources.items():
        try:
            path = _resolved(source.source)
            if path not in networks:
                networks[path] = read(path)
            kind = kind_of(source.mode, networks[path].kinds)
        except (ValueError, CheckpointError) as error:
            raise CheckpointError(f"controls.{name}: {error}") from error
        by_name[name] = ([*networks].index(path) + 1, kind)
    files = tuple(networks.values())
    work = {name: files[number - 1].work for name, (number, _) in by_name.items()}
    together = frozenset(
        number
        for number, entry in enumerate(files, 1)
        if entry.kinds and entry.kinds.is_multi_image
    )
    places = ControlSlots(reading.max_controls, by_name, work, steered, together)
    return Controls(files, places, _described(sources, places), tuple(networks))


def _described(
    sources: Mapping[str, ControlSource], places: ControlSlots
) -> dict[str, ControlKind]:
    numbers = {name: number for name, (number, _) in places.by_name.items()}
    return {
        name: ControlKind(
            mode=source.mode,
            work=places.work[name],
            union=numbers[name] if numbers[name] in places.union_networks else None,
        )
        for name, source in sources.items()
    }


def _resolved(source: str) -> Path:
    """Return the folder or file of a source. Raises: CheckpointError.

    Links are not resolved, since files in a hub cache have no extension.
    """
    in_hub = not (is_url(source) or Path(source).expanduser().is_dir()) and ":" in source
    is_file = in_hub or single_file(source) is not None
    return (resolve_file(source) if is_file else resolve(source, patterns=FILES)).absolute()


def kind_of(mode: str | None, kinds: UnionKinds | None) -> int:
    """Return the number of a union ControlNet's kind; 0 for other ControlNets.

    Raises: ValueError: the mode is unknown, missing or meaningless.
    """
    if kinds is not None:
        return kinds.number_of(mode)
    if mode is not None:
        raise ValueError(f"mode {mode!r} needs a union, and this ControlNet is not one")
    return 0


def with_controls(spec: ModelSpec, controls: Controls) -> ModelSpec:
    """Return the spec of a model with these ControlNets."""
    if not controls.networks:
        return spec
    limits = spec.limits.model_copy(update={"max_controls": controls.slots.count})
    return spec.model_copy(
        update={
            "controls": controls.described,
            "limits": limits,
            "fields": spec.fields | {FIELD},
        }
    )


def load_controls(
    controls: Controls, dtypes: tuple[DTypeLike, DTypeLike], reading: Reading
) -> nnx.List[nnx.Module] | None:
    """Load a model's ControlNets; None: no ControlNets.

    Args:
        dtypes: of the stored parameters, and of the parameters in use.

    Raises: CheckpointError: as `Reading.network`.
    """

    def loaded(files: ControlNetFiles) -> nnx.Module:
        shapes = [abstract_module(files.network, files.config, param_dtype=each) for each in dtypes]
        return reading.network(CONTROLS, (shapes[0], shapes[1]), files.place, files.renames)

    return nnx.List([loaded(files) for files in controls.networks]) if controls.networks else None
