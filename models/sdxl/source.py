"""Source of one checkpoint: a folder in diffusers' layout, or one file over a folder's configs."""

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
"""Network → its folder in the checkpoint, and its names there."""

TEXTS = (".json", ".txt", ".model")
"""Configs and vocabularies."""

Places = Mapping[str, tuple[Path | ComponentFiles, Renames]]
"""Network → where its weights lie, and their names there."""


class Source(NamedTuple):
    """Checkpoint."""

    folder: Path
    file: Path | None = None
    """Holds all weights, under their original names; the folder's are not read then."""

    def config(self, component: str) -> dict[str, Any]:
        """Return a component's config: the folder's, with what the file says of itself."""
        config = read_config(self.folder, component)
        if self.file is not None and component == "unet":
            return single_file.unet_config(self.file, config)
        return config

    def scheduler(self) -> dict[str, Any]:
        """The same of its scheduler."""
        config = read_scheduler(self.folder)
        return config if self.file is None else single_file.scheduler_config(self.file, config)

    def places(self, parts: Parts) -> Places:
        """Return where each network's arrays are.

        Raises: CheckpointError: the file is not what it should be.
        """
        there = {
            name: component
            for name, component in COMPONENTS.items()
            if name != "clip" or parts.clip is not None
        }
        if self.file is None:
            return {name: (self.folder / home, names) for name, (home, names) in there.items()}
        found = single_file.components(self.file, parts)
        return {name: found[home] for name, (home, _) in there.items()}

    def fingerprint(self, *beside: Path) -> str:
        """Return the fingerprint of what it holds.

        Args:
            beside: further folders and files that the model has.
        """
        return fingerprint(*self.paths, *beside)

    def config_digest(self, *beside: Path) -> str:
        """Return the digest of its configs, as `fingerprint`."""
        return config_digest(*self.paths, *beside)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the folder, or the file with just the configs and vocabularies it is used with."""
        if self.file is None:
            return (self.folder,)
        texts = (path for path in self.folder.rglob("*") if path.suffix in TEXTS)
        return (self.file, *sorted(texts))
