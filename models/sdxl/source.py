"""Location of a checkpoint: a folder in diffusers' layout, or one file and a folder's configs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import read_config, read_scheduler
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.sdxl import single_file
from models.sdxl.compatibility import Parts
from models.sdxl.key_mapping import RENAMES
from models.text.clip import RENAMES as CLIP_RENAMES
from models.text.clip import UNPROJECTED_RENAMES
from models.vae.key_mapping import RENAMES as VAE_RENAMES

COMPONENTS: Mapping[str, tuple[str, Renames]] = {
    "unet": ("unet", RENAMES),
    "clip": ("text_encoder", UNPROJECTED_RENAMES),
    "clip_2": ("text_encoder_2", CLIP_RENAMES),
    "vae": ("vae", VAE_RENAMES),
}
"""Network → its folder in the checkpoint, and the renames of its keys."""

TEXTS = (".json", ".txt", ".model")
"""File suffixes of configs and vocabularies."""

ArraySources = Mapping[str, tuple[Path | ComponentFiles, Renames]]
"""Network → path of its weights, and the renames of its keys."""


class Source(NamedTuple):
    """Checkpoint on disk: a folder, and optionally a single file of weights."""

    folder: Path
    file: Path | None = None
    """Single file with all weights under their original names; replaces the folder's weights."""

    def config(self, component: str) -> dict[str, Any]:
        """Return a component's config from the folder, adjusted to the single file."""
        config = read_config(self.folder, component)
        if self.file is not None and component == "unet":
            return single_file.unet_config(self.file, config)
        return config

    def scheduler(self) -> dict[str, Any]:
        """Return the scheduler's config from the folder, adjusted to the single file."""
        config = read_scheduler(self.folder)
        return config if self.file is None else single_file.scheduler_config(self.file, config)

    def array_sources(self, parts: Parts) -> ArraySources:
        """Return the path and renames of each network's arrays.

        Raises: CheckpointError: an unsupported or damaged file.
        """
        components = {
            name: component
            for name, component in COMPONENTS.items()
            if name != "clip" or parts.clip is not None
        }
        if self.file is None:
            return {name: (self.folder / home, names) for name, (home, names) in components.items()}
        files = single_file.components(self.file, parts)
        return {name: files[home] for name, (home, _) in components.items()}

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
        """Folder; or the file, and the configs and vocabularies that complete it."""
        if self.file is None:
            return (self.folder,)
        texts = (path for path in self.folder.rglob("*") if path.suffix in TEXTS)
        return (self.file, *sorted(texts))
