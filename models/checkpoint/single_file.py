"""Single weight files, which contain networks under prefixes, with the authors' keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint, weight_files
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles, open_tensors
from models.checkpoint.tensor import Shape

TRANSFORMER_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "transformer.", "")
"""Prefixes of a denoising transformer's keys, in files of ComfyUI and others. Prefixes of files
with several networks are first. Source: ComfyUI, comfy/model_detection.py."""

VAE_PREFIXES = ("vae.", "first_stage_model.")
"""Prefixes of an autoencoder's keys in files with several networks; files of it alone have none."""


class Naming(NamedTuple):
    """Naming scheme of a network's arrays in single files."""

    prefixes: tuple[str, ...]
    """Possible prefixes of its keys; a file uses one of them."""
    mark: str
    """Key after the prefix that identifies the network and the scheme."""
    renames: Renames


class NetworkFile(NamedTuple):
    """Network in a file: arguments of `models.weights.loader.load` besides the module."""

    files: ComponentFiles
    renames: Renames


class FileFormat(NamedTuple):
    """Single-file format of a family: naming schemes of its networks."""

    model: str
    """Name of the models, for messages."""
    beginnings: str
    """First parts of the transformer's keys after a prefix, for messages."""
    namings: Mapping[str, Sequence[Naming]]
    """Naming schemes by network name in the pipeline; one network is `transformer`."""

    def parts(self, file: Path) -> dict[str, NetworkFile]:
        """Return the networks of a file.

        Raises:
            UnsupportedCheckpoint: the file has no transformer of that family.
            CheckpointError: pickled, damaged or missing.
        """
        networks = parts_of(file, self.namings)
        if "transformer" not in networks:
            raise UnsupportedCheckpoint(
                f"{file}: no {self.model} transformer in it; its keys must begin with "
                f"{self.beginnings}, optionally after the prefix model.diffusion_model"
            )
        return networks


def parts_of(file: Path, namings: Mapping[str, Sequence[Naming]]) -> dict[str, NetworkFile]:
    """Return the networks that a file contains, among those of `namings`.

    Raises: CheckpointError: pickled, damaged or missing.
    """
    keys = shapes_of(file)
    networks = {}
    for network, schemes in namings.items():
        for prefix, naming in _spelled(schemes):
            if prefix + naming.mark in keys:
                files = ComponentFiles(f"{network} in {file.name}", (file,), prefix)
                networks[network] = NetworkFile(files, naming.renames)
                break
    return networks


def in_folder(
    folder: Path, namings: Sequence[Naming], renames: Renames
) -> tuple[Path | ComponentFiles, Renames]:
    """Return the location of a component whose folder may hold a file with authors' keys.

    Args:
        namings: schemes in single files; here the keys may have no prefix.
        renames: of diffusers' keys.

    Raises: CheckpointError: no files, or damaged ones.
    """
    files = weight_files(folder)
    keys = {key for file in files for key in shapes_of(file)}
    for naming in namings:
        for prefix in (*naming.prefixes, ""):
            if prefix + naming.mark in keys:
                return ComponentFiles(folder.name, files, prefix), naming.renames
    return folder, renames


def _spelled(namings: Sequence[Naming]) -> Iterator[tuple[str, Naming]]:
    return ((prefix, naming) for naming in namings for prefix in naming.prefixes)


def shapes_of(file: Path) -> dict[str, Shape]:
    """Return the shapes of a file's arrays by key.

    Raises: CheckpointError: pickled, damaged or missing.
    """
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file")
    with ExitStack() as files:
        tensors = open_tensors(ComponentFiles(file.name, (file,)), files)
        return {key: tensor.shape for key, tensor in tensors.items()}
