"""Location of a checkpoint: a folder in diffusers' layout, or one file and a folder's configs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import files_below, read_config, read_scheduler
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.single_file import VAE_PREFIXES, Naming, in_folder
from models.sampling import registry
from models.sdxl import single_file
from models.sdxl.compatibility import Parts
from models.sdxl.key_mapping import RENAMES
from models.spec.file_kinds import has_weight_ending
from models.text.clip import RENAMES as CLIP_RENAMES
from models.text.clip import UNPROJECTED_RENAMES
from models.vae.key_mapping import RENAMES as VAE_RENAMES
from models.vae.original_keys import ORIGINAL_MARK, vae_renames

COMPONENTS: Mapping[str, tuple[str, Renames]] = {
    "unet": ("unet", RENAMES),
    "clip": ("text_encoder", UNPROJECTED_RENAMES),
    "clip_2": ("text_encoder_2", CLIP_RENAMES),
    "vae": ("vae", VAE_RENAMES),
}
"""Network → its folder in the checkpoint, and the renames of its keys."""

TEXTS = (".json", ".txt", ".model")
"""File suffixes of configs and vocabularies."""

ArraySource = tuple[Path | ComponentFiles, Renames]
"""Path of a network's weights, and the renames of its keys."""
ArraySources = Mapping[str, ArraySource]
"""Network → its `ArraySource`."""

DEFAULT_CLASS = "EulerAncestralDiscreteScheduler"
"""Class of a scheduler's config in place of one that is not served."""


class Source(NamedTuple):
    """Checkpoint on disk: a folder, and optionally a single file of weights."""

    folder: Path
    file: Path | None = None
    """Single file with weights under their original names; replaces the folder's weights."""
    chosen: tuple[str, ...] = ()
    """Components of the folder that the operator chose; not read from the file."""
    scheduler_choice: str | None = None
    """Default scheduler of requests, which replaces a checkpoint's that is not served."""

    def config(self, component: str) -> dict[str, Any]:
        """Return a component's config from the folder, adjusted to the single file."""
        config = read_config(self.folder, component)
        if self.file is not None and component == "unet":
            return single_file.unet_config(self.file, config)
        return config

    def scheduler(self) -> dict[str, Any]:
        """Return the scheduler's config from the folder, adjusted to the single file."""
        config = self.served(read_scheduler(self.folder))
        return config if self.file is None else single_file.scheduler_config(self.file, config)

    def served(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a scheduler's config, with the operator's class if its own is not supported.

        Raises: ValueError: neither is served.
        """
        return registry.served_config(
            config, registry.CLASSES, registry.OPTIONS, self.scheduler_choice, DEFAULT_CLASS
        )

    def array_sources(self, parts: Parts) -> ArraySources:
        """Return the path and renames of each network's arrays.

        Raises: CheckpointError: an unsupported or damaged file.
        """
        components = {
            name: component
            for name, component in COMPONENTS.items()
            if name != "clip" or parts.clip is not None
        }
        in_file = {} if self.file is None else single_file.components(self.file, parts)
        return {
            name: in_file[home]
            if home in in_file and home not in self.chosen
            else self._in_folder(home, names, parts)
            for name, (home, names) in components.items()
        }

    def _in_folder(self, home: str, names: Renames, parts: Parts) -> ArraySource:
        """Return the folder of a component; a chosen autoencoder may have the original keys."""
        place = self.folder / home
        if home == "vae" and home in self.chosen:
            namings = (Naming(VAE_PREFIXES, ORIGINAL_MARK, vae_renames(parts.vae)),)
            return in_folder(place, namings, names)
        return place, names

    def fingerprint(self, *extras: Path) -> str:
        """Return the fingerprint of the checkpoint's contents.

        Args:
            extras: additional folders and files of the model.
        """
        return fingerprint(*self.paths, *extras)

    def config_digest(self, *extras: Path) -> str:
        """Return the digest of the checkpoint's configs; arguments as for `fingerprint`."""
        return config_digest(*self.paths, *extras)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Paths of the checkpoint's files: its folder, or the single file and what completes it."""
        if self.file is None:
            return (self.folder,)
        homes = {*self.chosen, *single_file.absent(self.file)}
        files = (
            path
            for path in files_below(self.folder)
            if path.suffix in TEXTS or (path.parent.name in homes and has_weight_ending(path.name))
        )
        return (self.file, *files)
