"""Locations of the arrays of Wan's networks: a folder, single files, and chosen parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles
from models.checkpoint.single_file import VAE_PREFIXES, Naming, in_folder
from models.text import umt5
from models.vae import video_key_mapping
from models.vae.video_config import VideoVaeConfig
from models.vae.video_original_keys import AUTHORS_MARK, original_renames
from models.vision import clip
from models.wan import single_file
from models.wan.animate_config import AnimateConfig
from models.wan.checkpoint import WanCheckpoint
from models.wan.key_mapping import FACE_RENAMES, RENAMES

COMPONENTS: Mapping[str, tuple[str, Renames]] = {
    "transformer": ("transformer", RENAMES),
    "transformer_2": ("transformer_2", RENAMES),
    "t5": ("text_encoder", umt5.RENAMES),
    "vae": ("vae", video_key_mapping.RENAMES),
    "image_encoder": ("image_encoder", clip.RENAMES),
    "face_encoder": ("transformer", FACE_RENAMES),
}
"""Network → its folder in the checkpoint, and the renames of its keys."""
ArraySource = tuple[Path | ComponentFiles, Renames]
"""Path of a network's arrays, and the renames of their keys."""
ArraySources = Mapping[str, ArraySource]
"""Network → its `ArraySource`."""


def array_sources(
    folder: Path, file: Path | None, checkpoint: WanCheckpoint, chosen: Collection[str]
) -> ArraySources:
    """Return the location of each network's arrays. Raises: CheckpointError: not a Wan file.

    Args:
        chosen: components that the operator chose, which may have the authors' keys.
    """
    locations: dict[str, ArraySource] = {
        name: in_folder(folder / component, _namings(component, checkpoint.vae), names)
        if component in chosen
        else (folder / component, names)
        for name, (component, names) in COMPONENTS.items()
    }
    if file is None:
        return locations
    transformers = [name for name in checkpoint.transformers if name not in chosen]
    locations[transformers[0]] = single_file.transformer(file, len(transformers))
    if isinstance(checkpoint.transformer, AnimateConfig):
        locations["face_encoder"] = single_file.face_encoder(file, checkpoint.transformer)
    return locations


def _namings(component: str, vae: VideoVaeConfig) -> tuple[Naming, ...]:
    """Return the naming schemes of the operator's component files, besides diffusers'."""
    if component == "transformer_2":
        return single_file.NAMINGS
    if component == "text_encoder":
        return (Naming(("",), umt5.AUTHORS_MARK, umt5.AUTHORS_RENAMES),)
    if component == "vae" and not vae.attn_scales:
        return (Naming(VAE_PREFIXES, AUTHORS_MARK, original_renames(vae)),)
    return ()
