"""Networks in one file of weights, as they are shared: under prefixes, with the authors' keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.folder import PICKLED, CheckpointError, UnsupportedCheckpoint
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles, Shape, open_tensors

TRANSFORMER_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "transformer.", "")
"""Prefixes of a denoising transformer's keys, in files of ComfyUI and others; first come those that
files with further networks have. Source: ComfyUI, comfy/model_detection.py."""


class Naming(NamedTuple):
    """Way in which files name a network's arrays."""

    prefixes: tuple[str, ...]
    """Beginnings of its keys; a file has one of them."""
    mark: str
    """A key behind the prefix, which tells the network and the way."""
    renames: Renames


class NetworkFile(NamedTuple):
    """Network in a file: arguments of `models.weights.loader.load` beside the module."""

    files: ComponentFiles
    renames: Renames


class FileFormat(NamedTuple):
    """Format of single files of a family: how they name the arrays of its networks."""

    model: str
    """Name of the models, for messages."""
    beginnings: str
    """Beginnings of the transformer's keys behind a prefix, for messages."""
    namings: Mapping[str, Sequence[Naming]]
    """Ways of naming each network, by its name in the pipeline; one is `transformer`."""

    def parts(self, file: Path) -> dict[str, NetworkFile]:
        """Return the networks of a file.

        Raises:
            UnsupportedCheckpoint: there is no transformer of that family in it.
            CheckpointError: pickled, damaged or not there.
        """
        found = parts_of(file, self.namings)
        if "transformer" not in found:
            raise UnsupportedCheckpoint(
                f"{file}: no {self.model} transformer in it; its keys would begin with "
                f"{self.beginnings}, behind model.diffusion_model or nothing"
            )
        return found


def parts_of(file: Path, namings: Mapping[str, Sequence[Naming]]) -> dict[str, NetworkFile]:
    """Return the networks that a file has, of those that are looked for.

    Raises: CheckpointError: pickled, damaged or not there.
    """
    keys = shapes_of(file)
    found = {}
    for network, known in namings.items():
        for prefix, naming in _spelled(known):
            if prefix + naming.mark in keys:
                files = ComponentFiles(f"{network} in {file.name}", (file,), prefix)
                found[network] = NetworkFile(files, naming.renames)
                break
    return found


def _spelled(namings: Sequence[Naming]) -> Iterator[tuple[str, Naming]]:
    return ((prefix, naming) for naming in namings for prefix in naming.prefixes)


def shapes_of(file: Path) -> dict[str, Shape]:
    """Return the shapes of a file's arrays by their keys.

    Raises: CheckpointError: pickled, damaged or not there.
    """
    if file.suffix in PICKLED:
        raise CheckpointError(
            f"{file}: a pickled checkpoint, which can run code when it is read and is never "
            "opened; convert it to safetensors where you trust it"
        )
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file")
    with ExitStack() as files:
        tensors = open_tensors(ComponentFiles(file.name, (file,)), files)
        return {key: tensor.shape for key, tensor in tensors.items()}
