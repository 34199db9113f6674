"""Networks in one file of weights, as they are shared: under prefixes, with the authors' keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.folder import PICKLED, CheckpointError
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
