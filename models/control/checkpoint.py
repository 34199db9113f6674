"""ControlNets of a model by the names that settings give them: files, networks, and places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax import nnx
from jax.typing import DTypeLike

from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.checkpoint.hub import resolve, resolve_file, single_file
from models.checkpoint.key_mapping import Renames
from models.checkpoint.object_folder import is_url
from models.checkpoint.safetensors import ComponentFiles
from models.control.places import NO_CONTROLS, ControlPlaces
from models.loading.abstract import abstract_module
from models.loading.sources import ControlSource, Reading
from models.spec.controls import FIELD, ControlKind
from models.spec.model_spec import ModelSpec

CONTROLS = "controls"
"""Name of a model's ControlNets among its networks: a list, or None."""
FILES = (
    "config.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model-*.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
)
"""Files of a hub repository that are fetched: those of half precision are the same ones."""


@dataclass(frozen=True)
class UnionKinds:
    """Kinds of control images that a union tells apart."""

    count: int
    names: Mapping[str, int]
    """Numbers of those that have a name."""
    together: bool = False
    """True if it reads several images in one run."""

    def number_of(self, mode: str | None) -> int:
        """Return the number of a kind, by its name or as a number. Raises: ValueError: none."""
        known = ", ".join(name for name, number in self.names.items() if number < self.count)
        if mode is None:
            raise ValueError(f"is a union: say its mode, {known}")
        kind = int(mode) if mode.isdecimal() else self.names.get(mode, self.count)
        if kind >= self.count:
            raise ValueError(f"mode {mode!r} is none that it has: {known}")
        return kind


@dataclass(frozen=True)
class ControlNetFiles:
    """Checkpoint of one ControlNet."""

    network: Callable[..., nnx.Module]
    """Make it, of its config."""
    config: Any
    place: Path | ComponentFiles
    renames: Renames
    work: float
    """Work of a step, as a share of the steered network's."""
    kinds: UnionKinds | None = None
    """Kinds of a union; None: it reads one kind of image."""


ReadFiles = Callable[[Path], ControlNetFiles]
"""Read a folder or file. Raises: CheckpointError, ValueError: it cannot be served or does not
fit the model."""


@dataclass(frozen=True)
class Controls:
    """ControlNets of a model, each once, however many names it has."""

    networks: tuple[ControlNetFiles, ...] = ()
    places: ControlPlaces = NO_CONTROLS
    described: Mapping[str, ControlKind] | None = None
    paths: tuple[Path, ...] = ()
    """Folders and files of all, for fingerprints."""


NO_CONTROL_NETS = Controls()


def read_controls(
    reading: Reading, steered: str, read: ReadFiles, *, in_files: bool = False
) -> Controls:
    """Read the configs of a model's ControlNets.

    Args:
        steered: name of the network that they steer.
        in_files: whether one may be a single file.

    Raises: CheckpointError: one cannot be read or served, or does not fit; names it.
    """
    sources = reading.controls
    if not sources:
        return NO_CONTROL_NETS
    networks: dict[Path, ControlNetFiles] = {}
    by_name = {}
    for name, source in sources.items():
        try:
            path = _resolved(source.source, in_files)
            if path not in networks:
                networks[path] = read(path)
            kind = kind_of(source.mode, networks[path].kinds)
        except (ValueError, CheckpointError) as error:
            raise CheckpointError(f"controls.{name}: {error}") from error
        by_name[name] = ([*networks].index(path) + 1, kind)
    found = tuple(networks.values())
    work = {name: found[number - 1].work for name, (number, _) in by_name.items()}
    together = frozenset(
        number for number, files in enumerate(found, 1) if files.kinds and files.kinds.together
    )
    places = ControlPlaces(reading.max_controls, by_name, work, steered, together)
    return Controls(found, places, _described(sources, places), tuple(networks))


def _described(
    sources: Mapping[str, ControlSource], places: ControlPlaces
) -> dict[str, ControlKind]:
    numbers = {name: number for name, (number, _) in places.by_name.items()}
    return {
        name: ControlKind(
            mode=source.mode,
            work=places.work[name],
            union=numbers[name] if numbers[name] in places.together else None,
        )
        for name, source in sources.items()
    }


def _resolved(source: str, in_files: bool) -> Path:
    """Return the folder or file of a source. Raises: CheckpointError.

    Links stay: what a hub's cache links to has no name of its kind.
    """
    in_hub = not (is_url(source) or Path(source).expanduser().is_dir()) and ":" in source
    is_file = in_hub or single_file(source) is not None
    if is_file and not in_files:
        raise UnsupportedCheckpoint(
            f"{source}: this model's ControlNets are not read from single files; give a folder or "
            "hub id in diffusers' layout"
        )
    return (resolve_file(source) if is_file else resolve(source, patterns=FILES)).absolute()


def kind_of(mode: str | None, kinds: UnionKinds | None) -> int:
    """Return the number of a union's kind; 0 of a ControlNet with one.

    Raises: ValueError: none such, or it is needed, or has no meaning.
    """
    if kinds is not None:
        return kinds.number_of(mode)
    if mode is not None:
        raise ValueError(f"mode {mode!r} is of a union, and this ControlNet is none")
    return 0


def with_controls(spec: ModelSpec, controls: Controls) -> ModelSpec:
    """Return the spec of a model with these ControlNets."""
    if not controls.networks:
        return spec
    limits = spec.limits.model_copy(update={"max_controls": controls.places.slots})
    return spec.model_copy(
        update={
            "controls": controls.described,
            "limits": limits,
            "fields": spec.fields | {FIELD},
        }
    )


def load_controls(
    controls: Controls, dtypes: tuple[DTypeLike, DTypeLike], reading: Reading
) -> nnx.List | None:
    """Load a model's ControlNets; None: it has none.

    Args:
        dtypes: in which they are stored, and in which they are used.

    Raises: CheckpointError: as `Reading.network`.
    """

    def loaded(files: ControlNetFiles) -> nnx.Module:
        shapes = [abstract_module(files.network, files.config, param_dtype=each) for each in dtypes]
        return reading.network(CONTROLS, (shapes[0], shapes[1]), files.place, files.renames)

    return nnx.List([loaded(files) for files in controls.networks]) if controls.networks else None
