"""The only list of models: which checkpoints are served, and by which family.

No JAX in here: a family's code is imported when a checkpoint of it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from models.checkpoint import CheckpointError, UnsupportedCheckpoint, read_model_index
from models.hub import resolve

if TYPE_CHECKING:
    from models.pipeline import Pipeline

FAMILIES: Mapping[str, str] = {
    "FluxPipeline": "models.flux.load",
    "FluxImg2ImgPipeline": "models.flux.load",
}
"""`_class_name` of a checkpoint's model_index.json → the module whose `load` serves it."""


def loader(class_name: str) -> Callable[..., Pipeline]:
    """The `load` of the family of a model_index.json. Raises: UnsupportedCheckpoint."""
    if class_name not in FAMILIES:
        raise UnsupportedCheckpoint(
            f"{class_name} is not served; a folder whose model_index.json says "
            f"{' or '.join(sorted(FAMILIES))} is"
        )
    return import_module(FAMILIES[class_name]).load  # type: ignore[no-any-return]


def load(name: str, source: str, dtype: str, defaults: Mapping[str, Any]) -> Pipeline:
    """The model `name` from a folder in diffusers' layout or a hub id with an optional @revision.

    Raises:
        UnsupportedCheckpoint: the checkpoint is of another kind; says which are served.
        models.checkpoint.CheckpointError: its files or configs cannot be used; says which and why.
    """
    folder = resolve(source)
    load_family = loader(read_model_index(folder)["_class_name"])
    try:
        return load_family(name, folder, dtype, defaults)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
